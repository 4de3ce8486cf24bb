//! How the driver is called.

use super::abi::{self, CuResult};
use super::error::CudaError;

/// Calls a function of the driver, or says that there is none. Expands to code that needs `unsafe`.
macro_rules! call {
    ($driver:expr, $field:ident, $name:literal $(, $argument:expr)*) => {
        match $driver.table.$field {
            Some(function) => check($name, function($($argument),*)),
            None => Err(CudaError::MissingSymbol { symbol: $name, version: $driver.version }),
        }
    };
}

pub(super) fn check(call: &'static str, code: CuResult) -> Result<(), CudaError> {
    if code == abi::SUCCESS { Ok(()) } else { Err(CudaError::Call { call, code }) }
}

pub(super) use call;
