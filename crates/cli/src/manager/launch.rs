//! What a manager that is started is told.

use super::{Configured, Ssd};
use std::ffi::OsString;

/// What is not said here is what the manager's file says, or its default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    pub(crate) pool_size: Option<String>,
    pub(crate) ssd: Option<Ssd>,
    pub(crate) configured: Option<Configured>,
}

impl Launch {
    /// The manager's own flags.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        if let Some(Configured { file, .. }) = &self.configured {
            flags.extend(["--config".into(), file.into()]);
        }
        if let Some(size) = &self.pool_size {
            flags.extend(["--pool-size".into(), size.into()]);
        }
        if let Some(Ssd { directory, capacity }) = &self.ssd {
            flags.extend(["--ssd-cache-path".into(), directory.into()]);
            flags.extend(["--ssd-cache-capacity".into(), capacity.into()]);
        }
        flags
    }

    /// Whether the manager's file says where HTTP is served.
    pub(crate) fn has_http(&self) -> bool {
        self.configured.as_ref().is_some_and(|configured| configured.http.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(launch: &Launch) -> Vec<String> {
        launch.flags().iter().map(|flag| flag.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn only_what_was_said_is_passed_on() {
        assert!(words(&Launch::default()).is_empty());
        let ssd = Some(Ssd { directory: "/fast".into(), capacity: "5gb".to_owned() });
        let launch = Launch { pool_size: Some("1gb".to_owned()), ssd, configured: None };
        let said = ["--pool-size", "1gb", "--ssd-cache-path", "/fast", "--ssd-cache-capacity", "5gb"];
        assert_eq!(words(&launch), said);
    }
}
