//! Which restored pages have their checksum compared.

use crate::ClientError;
use std::fmt;
use std::str::FromStr;

/// The rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// None.
    Off,
    /// Every N-th page; N is at least 1.
    Sample(u64),
    /// Every page.
    All,
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Sample(n) => write!(f, "sample:{n}"),
            Self::All => f.write_str("all"),
        }
    }
}

impl FromStr for Verify {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let sample = |text: &str| text.strip_prefix("sample:")?.parse().ok().filter(|n| *n > 0);
        match text {
            "off" => Ok(Self::Off),
            "all" => Ok(Self::All),
            _ => sample(text).map(Self::Sample).ok_or_else(|| {
                let got: String = text.chars().take(80).collect();
                let want = "off, all, or sample:N with N at least 1";
                ClientError::value("verify_restore", format!("{got:?}"), want)
            }),
        }
    }
}

/// The rule and its counter.
#[derive(Debug)]
pub(crate) struct Verifier {
    rule: Verify,
    seen: u64,
}

impl Verifier {
    pub(crate) fn new(rule: Verify) -> Self {
        Self { rule, seen: 0 }
    }

    /// Whether the next page is compared.
    pub(crate) fn selects(&mut self) -> bool {
        match self.rule {
            Verify::Off => false,
            Verify::All => true,
            Verify::Sample(n) => {
                self.seen += 1;
                self.seen.is_multiple_of(n)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_every_nth_page() {
        let mut verifier = Verifier::new("sample:3".parse().unwrap());
        let selected: Vec<bool> = (0..7).map(|_| verifier.selects()).collect();
        assert_eq!(selected, [false, false, true, false, false, true, false]);
        assert!(Verifier::new("all".parse().unwrap()).selects());
        assert!(!Verifier::new("off".parse().unwrap()).selects());
    }

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for text in ["off", "sample:16", "all"] {
            assert_eq!(text.parse::<Verify>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_rules_are_refused() {
        for text in ["", "sample", "sample:", "sample:0", "sample:-1", "ALL", "sample:x"] {
            assert!(text.parse::<Verify>().unwrap_err().to_string().contains("sample:N"), "{text}");
        }
    }
}
