//! The smallest pieces of a copy.

/// One contiguous copy: `len` bytes from `src` to `dst`.
#[derive(Debug, Clone, Copy)]
pub struct Fragment {
    src: *const u8,
    dst: *mut u8,
    len: usize,
}

// SAFETY: a fragment is two addresses and a length; whoever made it has promised (`Fragment::new`) that they may be
// used from any thread.
unsafe impl Send for Fragment {}
// SAFETY: as above; a shared fragment gives out copies of the addresses only.
unsafe impl Sync for Fragment {}

impl Fragment {
    /// Names a copy.
    ///
    /// # Safety
    ///
    /// Until the job that holds this fragment has left custody ([`crate::Progress::custody`]): `src` must be valid
    /// for reads and `dst` for writes of `len` bytes, from any thread of the copy engine used; the two must not
    /// overlap; and nobody else may write either range or read the destination.
    #[must_use]
    pub unsafe fn new(src: *const u8, dst: *mut u8, len: usize) -> Fragment {
        Fragment { src, dst, len }
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// First byte read.
    #[must_use]
    pub fn src(&self) -> *const u8 {
        self.src
    }

    /// First byte written.
    pub(crate) fn dst(&self) -> *mut u8 {
        self.dst
    }

    /// The part of `len` bytes at `offset`, or what there is of it.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Fragment {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        // SAFETY: `offset <= self.len`, so both addresses stay inside the ranges promised to `Fragment::new`, and the
        // part's bytes are among theirs.
        unsafe { Fragment { src: self.src.add(offset), dst: self.dst.add(offset), len } }
    }

    /// Copies the bytes.
    ///
    /// # Safety
    ///
    /// The job that holds this fragment is in custody: the promise of [`Fragment::new`] still stands.
    pub(crate) unsafe fn copy(&self) {
        // SAFETY: valid, disjoint ranges by the promise of `Fragment::new`, which the caller says still stands.
        unsafe { std::ptr::copy_nonoverlapping(self.src, self.dst, self.len) };
    }
}

/// The fragments of one layer, over all pages of a job. They may be copied in any order, and at the same time.
#[derive(Debug)]
pub struct Step {
    fragments: Vec<Fragment>,
    bytes: usize,
}

impl Step {
    /// Collects `fragments`. An empty one, or one without bytes, is refused with the job: [`crate::CopyJob::new`].
    #[must_use]
    pub fn new(fragments: Vec<Fragment>) -> Step {
        let bytes = fragments.iter().fold(0_usize, |sum, fragment| sum.saturating_add(fragment.len));
        Step { fragments, bytes }
    }

    /// The fragments.
    #[must_use]
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// Bytes of all fragments.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
