//! Bytes in a time as people write it: `256mib/s`, `40gb/hour`, `1tb/day`.

use crate::{Amount, AmountError};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// So many bytes in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At least one.
    pub bytes: u64,
    /// How long they are for.
    pub period: Period,
}

/// The times that a rate can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// `/s`.
    Second,
    /// `/hour`.
    Hour,
    /// `/day`.
    Day,
}

/// Text that is no rate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RateError {
    /// A size alone.
    #[error("{0:?} says no time: write a size and a time, such as 1tb/day, 40gb/hour or 256mib/s")]
    NoTime(String),
    /// Another time.
    #[error("{time:?} in {text:?} is not a time: write /s, /hour or /day, such as 1tb/day")]
    Time {
        /// All of it.
        text: String,
        /// What stands behind the slash.
        time: String,
    },
    /// Not a number with a unit; a share is none.
    #[error("{size:?} in {text:?} is not a size: write bytes with a unit, such as 1tb/day or 256mib/s")]
    Size {
        /// All of it.
        text: String,
        /// What stands before the slash.
        size: String,
    },
    /// Nothing.
    #[error("{0:?} is a rate of zero; it must be at least one byte")]
    Zero(String),
}

impl Period {
    /// How long it is.
    #[must_use]
    pub fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }

    /// As it is written, and for labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

impl Rate {
    /// Microseconds in which so many bytes come, rounded up.
    #[must_use]
    pub fn micros_of(self, bytes: u64) -> u64 {
        let period_us = u128::from(self.period.seconds()) * 1_000_000;
        let micros = (u128::from(bytes) * period_us).div_ceil(u128::from(self.bytes.max(1)));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Bytes that come in so many microseconds, rounded down.
    #[must_use]
    pub fn bytes_in(self, micros: u64) -> u64 {
        let period_us = u128::from(self.period.seconds()) * 1_000_000;
        u64::try_from(u128::from(self.bytes) * u128::from(micros) / period_us).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bytes, self.period.name())
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let whole = || text.to_owned();
        let Some((size, time)) = text.trim().split_once('/') else {
            return Err(RateError::NoTime(whole()));
        };
        let period = match time.trim().to_ascii_lowercase().as_str() {
            "s" | "second" => Period::Second,
            "h" | "hour" => Period::Hour,
            "d" | "day" => Period::Day,
            _ => return Err(RateError::Time { text: whole(), time: time.to_owned() }),
        };
        match size.parse() {
            Ok(Amount::Bytes(bytes)) => Ok(Self { bytes, period }),
            Err(AmountError::Zero) => Err(RateError::Zero(whole())),
            Ok(Amount::Percent(_)) | Err(_) => Err(RateError::Size { text: whole(), size: size.to_owned() }),
        }
    }
}

/// A rate, or 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateOrNone(pub Option<Rate>);

impl FromStr for RateOrNone {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text.trim() == "0" => Ok(Self(None)),
            Ok(rate) => Ok(Self(Some(rate))),
            Err(RateError::Zero(_)) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_size_and_a_time() {
        let cases = [
            ("1tb/day", 1_000_000_000_000, Period::Day),
            ("40GB / hour", 40_000_000_000, Period::Hour),
            ("256mib/s", 256 << 20, Period::Second),
            (" 4096/h ", 4096, Period::Hour),
        ];
        for (text, bytes, period) in cases {
            assert_eq!(text.parse(), Ok(Rate { bytes, period }), "{text}");
        }
        assert_eq!("0".parse(), Ok(RateOrNone(None)));
        assert_eq!("0/s".parse(), Ok(RateOrNone(None)));
    }

    #[test]
    fn anything_else_is_refused_with_the_value_and_the_fix() {
        for (text, words) in [
            ("1tb", "\"1tb\" says no time: write a size and a time, such as 1tb/day"),
            ("1tb/week", "\"week\" in \"1tb/week\" is not a time: write /s, /hour or /day"),
            ("1tb/", "\"\" in \"1tb/\" is not a time"),
            ("25%/day", "\"25%\" in \"25%/day\" is not a size"),
            ("much/day", "\"much\" in \"much/day\" is not a size"),
            ("-1gb/day", "is not a size"),
            ("0gb/day", "a rate of zero"),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn time_and_bytes_of_a_rate_agree() {
        let rate: Rate = "90mb/hour".parse().unwrap();
        assert_eq!((rate.micros_of(25_000), rate.bytes_in(1_000_000)), (1_000_000, 25_000));
        assert_eq!(rate.micros_of(1), 40, "rounded up");
        assert_eq!(rate.bytes_in(79), 1, "rounded down");
        let fast: Rate = "1000pib/s".parse().unwrap();
        assert_eq!(fast.bytes_in(u64::MAX), u64::MAX);
    }
}
