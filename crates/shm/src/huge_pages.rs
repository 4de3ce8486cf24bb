//! Whether the kernel backs shared memory by huge pages.

use std::fs;

const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The kernel's rule for transparent huge pages in shared memory.
///
/// Registering a segment with a GPU costs about two thirds as much with huge pages, so it is worth a line in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShmemHugePages {
    /// Used wherever a segment is large enough (`always`, `within_size`, `force`).
    Always,
    /// Used in our segments, which ask for them (`advise`).
    Advised,
    /// Not used (`never`, `deny`). Fix: `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    Off,
    /// This kernel does not say; taken as not used.
    Unknown,
}

/// Reads the kernel's rule.
#[must_use]
pub fn shmem_huge_pages() -> ShmemHugePages {
    fs::read_to_string(SHMEM_ENABLED).map_or(ShmemHugePages::Unknown, |text| parse(&text))
}

/// The chosen word stands in brackets: `always within_size [advise] never deny force`.
fn parse(text: &str) -> ShmemHugePages {
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some("always" | "within_size" | "force") => ShmemHugePages::Always,
        Some("advise") => ShmemHugePages::Advised,
        Some("never" | "deny") => ShmemHugePages::Off,
        _ => ShmemHugePages::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bracketed_word_decides() {
        assert_eq!(parse("always within_size advise [never] deny force\n"), ShmemHugePages::Off);
        assert_eq!(parse("always within_size [advise] never deny force\n"), ShmemHugePages::Advised);
        assert_eq!(parse("[always] within_size advise never deny force\n"), ShmemHugePages::Always);
        assert_eq!(parse("always never\n"), ShmemHugePages::Unknown);
        assert_eq!(parse(""), ShmemHugePages::Unknown);
    }
}
