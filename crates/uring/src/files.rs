//! Files as pages see them: opened once more, past the page cache where that is allowed.

use crate::mode::DiskMode;
use orbitkv_store::{DiskError, FileId, HostDirectory};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

/// One description for each file that pages were asked of; a request under way keeps it.
#[derive(Debug, Default)]
pub(crate) struct PageFiles(BTreeMap<FileId, Arc<File>>);

impl PageFiles {
    /// The file behind an id of the directory. Where it refuses O_DIRECT, `mode` says so from then on.
    pub(crate) fn get(
        &mut self,
        directory: &HostDirectory,
        id: FileId,
        mode: &mut DiskMode,
    ) -> Result<Arc<File>, DiskError> {
        if let Some(file) = self.0.get(&id) {
            return Ok(Arc::clone(file));
        }
        // Opened anew without O_DIRECT too: the directory's own description does not block, and older kernels'
        // io_uring answers EAGAIN on such a one where the page cache would have to wait.
        let mut opened = Err(DiskError::Io { errno: Errno::INVAL.raw_os_error() });
        if mode.direct {
            opened = directory.reopen(id, OFlags::DIRECT);
            if is_refusal(&opened) {
                mode.direct = false;
                let path = directory.path().display();
                mode.add_reason(format!("the file system of {path} refuses O_DIRECT"));
            }
        }
        if is_refusal(&opened) {
            opened = directory.reopen(id, OFlags::empty());
        }
        let file = Arc::new(opened?);
        self.0.insert(id, Arc::clone(&file));
        Ok(file)
    }

    pub(crate) fn forget(&mut self, id: FileId) {
        self.0.remove(&id);
    }

    /// Each is opened anew, as the mode then says.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn is_refusal(opened: &Result<File, DiskError>) -> bool {
    matches!(opened, Err(DiskError::Io { errno }) if *errno == Errno::INVAL.raw_os_error())
}
