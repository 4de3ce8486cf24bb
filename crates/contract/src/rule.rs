//! What a cache group needs at a boundary.

use crate::ContractError;
use std::fmt;
use std::str::FromStr;

/// What a cache group needs so that the engine can go on at a token boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Full attention: every page up to the boundary.
    #[default]
    Prefix,
    /// Sliding-window attention: the last `ceil(tokens / page_tokens)` pages before the boundary.
    Window {
        /// Length of the window.
        tokens: u32,
    },
    /// A recurrent state, as of Mamba layers: exactly the page that ends at the boundary.
    Checkpoint,
}

impl Rule {
    /// First page that is needed when the last one needed is `end_page − 1`.
    pub(crate) fn first_page(self, page_tokens: u32, end_page: u32) -> u32 {
        match self {
            Self::Prefix => 0,
            Self::Window { tokens } => end_page.saturating_sub(tokens.div_ceil(page_tokens)),
            Self::Checkpoint => end_page.saturating_sub(1),
        }
    }
}

/// As a registration spells it: `prefix`, `window:TOKENS` or `checkpoint`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("prefix"),
            Self::Window { tokens } => write!(f, "window:{tokens}"),
            Self::Checkpoint => f.write_str("checkpoint"),
        }
    }
}

impl FromStr for Rule {
    type Err = ContractError;

    fn from_str(text: &str) -> Result<Self, ContractError> {
        let unknown = || ContractError::UnknownRule { got: text.chars().take(32).collect() };
        match text {
            "prefix" => Ok(Self::Prefix),
            "checkpoint" => Ok(Self::Checkpoint),
            _ => {
                let tokens = text.strip_prefix("window:").ok_or_else(unknown)?;
                // The standard parser takes a sign, which a spelling that is compared must not have.
                let digits = tokens.bytes().all(|byte| byte.is_ascii_digit());
                let tokens =
                    tokens.parse().ok().filter(|tokens| digits && *tokens > 0).ok_or_else(unknown)?;
                Ok(Self::Window { tokens })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_read_as_it_is_written() {
        for rule in [Rule::Prefix, Rule::Window { tokens: 4096 }, Rule::Checkpoint] {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }

    #[test]
    fn other_words_are_refused_by_name() {
        for text in
            ["", "Prefix", "window", "window:", "window:0", "window:+5", "window:5 ", "window:99999999999"]
        {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
