//! What can go wrong between us and the driver.

/// Why the CUDA driver did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver here.
    #[error(
        "the CUDA driver library {library} cannot be loaded ({reason}): install the NVIDIA driver, or give the \
         container access to it (--gpus all); KV in host memory needs neither"
    )]
    NoDriver {
        /// What was looked for.
        library: String,
        /// What the dynamic loader says.
        reason: String,
    },
    /// The driver is too old for a call that cannot be done without.
    #[error("the CUDA driver (version {version}) lacks {symbol}: install a driver for CUDA 12.0 or later")]
    MissingSymbol {
        /// The function.
        symbol: &'static str,
        /// What the driver calls itself: 1000 * major + 10 * minor, or 0 where it does not say.
        version: i32,
    },
    /// A call failed.
    #[error("{call} reports CUDA error {code} ({})", meaning(*code))]
    Call {
        /// The function.
        call: &'static str,
        /// `CUresult`.
        code: i32,
    },
    /// A setting that cannot work.
    #[error("{field} = {value} is refused: use {wants}")]
    Config {
        /// Name of the setting.
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be.
        wants: &'static str,
    },
    /// The host gives no thread or no memory.
    #[error("cannot set up the CUDA copy engine: {reason}; raise the process's limits")]
    Host {
        /// The system's answer.
        reason: String,
    },
}

impl CudaError {
    /// Whether no later call on the context can succeed: the process has to be restarted.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        // Those that NVIDIA's reference marks as leaving the context in an inconsistent state, a context or a driver
        // that is gone, and the error that says nothing.
        const STICKY: [i32; 20] =
            [3, 4, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 722, 723, 999];
        matches!(self, CudaError::Call { code, .. } if STICKY.contains(code))
    }

    /// `CUresult`, or 999 (`CUDA_ERROR_UNKNOWN`) where no call was made.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            CudaError::Call { code, .. } => *code,
            _ => 999,
        }
    }
}

/// What the codes that users meet mean, and what to do.
fn meaning(code: i32) -> &'static str {
    match code {
        1 => "invalid value",
        2 => "out of memory: raise the memlock limit, or lower the pool size or the engine's memory share",
        3 | 4 => "the driver is not initialised, or already shut down",
        100 => "no CUDA device: check CUDA_VISIBLE_DEVICES",
        101 => "no such device: check the device index and CUDA_VISIBLE_DEVICES",
        201 | 709 => "the context is gone: restart the serving engine",
        209 | 218 | 221 | 222 => "the driver cannot compile the kernel for this device",
        214 | 220 | 226 => "the hardware reports an error: see nvidia-smi -q and the kernel log",
        700..=723 if code != 712 && code != 713 => "the context is lost: restart the serving engine",
        712 => "the memory is already registered",
        713 => "the memory is not registered",
        801 => "not supported by this driver or device",
        900..=908 => "the stream is being captured into a graph: hand over events outside of captures",
        _ => "see CUresult in NVIDIA's reference of the driver API",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_is_missing_and_what_to_do() {
        let missing =
            CudaError::NoDriver { library: "libcuda.so.1".to_owned(), reason: "not found".to_owned() };
        let text = missing.to_string();
        assert!(text.contains("libcuda.so.1") && text.contains("install the NVIDIA driver"), "{text}");
        let text = CudaError::Call { call: "cuMemHostRegister", code: 2 }.to_string();
        assert!(text.contains("cuMemHostRegister") && text.contains("memlock"), "{text}");
    }

    #[test]
    fn errors_of_one_call_are_not_the_end_of_the_device() {
        let call = |code| CudaError::Call { call: "x", code };
        assert!([700, 719, 709, 4, 999].into_iter().all(|code| call(code).is_sticky()));
        assert!(![1, 2, 600, 712, 713, 801, 900].into_iter().any(|code| call(code).is_sticky()));
        assert!(!CudaError::MissingSymbol { symbol: "x", version: 0 }.is_sticky());
    }
}
