//! An amount of memory as people write it: `4gb`, `512mib`, `25%`.

use bytesize::ByteSize;
use std::str::FromStr;
use thiserror::Error;

/// Bytes, or a share of something that is known only at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So many percent, 1 to 100.
    Percent(u8),
}

/// Text that is no amount.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AmountError {
    /// A share out of range, or not a number.
    #[error("{0:?} is not a share: write a whole number from 1% to 100%")]
    Percent(String),
    /// Not a number with a unit.
    #[error("{0:?} is not a size: write bytes with a unit, such as 4gb or 512mib, or a share such as 25%")]
    Bytes(String),
    /// Nothing.
    #[error("the size is zero; it must be at least one byte")]
    Zero,
}

impl Amount {
    /// Bytes, where a share is one of `whole_bytes`; rounded down.
    #[must_use]
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // In 128 bits: a percentage of 2^64 bytes would overflow.
            Self::Percent(percent) => {
                u64::try_from(u128::from(whole_bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
            }
        }
    }
}

/// An amount, or 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AmountOrNone(pub Option<Amount>);

impl AmountOrNone {
    /// Bytes, zero for none.
    #[must_use]
    pub fn of(self, whole_bytes: u64) -> u64 {
        self.0.map_or(0, |amount| amount.of(whole_bytes))
    }
}

impl FromStr for AmountOrNone {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(amount) => Ok(Self(Some(amount))),
            Err(AmountError::Zero) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        if let Some(number) = trimmed.strip_suffix('%') {
            return match number.trim_end().parse::<u8>() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => Err(AmountError::Percent(text.to_owned())),
            };
        }
        match trimmed.parse::<ByteSize>() {
            Ok(ByteSize(0)) => Err(AmountError::Zero),
            // The parser saturates: what does not fit 64 bits is no size of a memory.
            Ok(ByteSize(bytes)) if bytes < 1 << 60 => Ok(Self::Bytes(bytes)),
            _ => Err(AmountError::Bytes(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_decimal_and_binary_units_in_any_case() {
        let cases = [("4gb", 4_000_000_000), ("512MiB", 512 << 20), ("1.5 gib", 3 << 29), ("4096", 4096)];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Amount::Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn shares_are_of_the_whole() {
        assert_eq!("25%".parse::<Amount>().unwrap().of(1000), 250);
        assert_eq!("100 %".parse::<Amount>().unwrap().of(u64::MAX), u64::MAX);
    }

    #[test]
    fn anything_else_is_refused_by_value() {
        for text in ["", "gb", "4 apples", "-1gb", "1e400gb", "99999999999tib", "4gb4"] {
            let error = text.parse::<Amount>().unwrap_err();
            assert!(error.to_string().contains("is not a size"), "{text}: {error}");
        }
        for text in ["0%", "101%", "%", "x%", "-5%", "2.5%"] {
            let error = text.parse::<Amount>().unwrap_err();
            assert!(error.to_string().contains("is not a share"), "{text}: {error}");
        }
        assert_eq!("0gb".parse::<Amount>(), Err(AmountError::Zero));
    }
}
