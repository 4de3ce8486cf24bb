//! Stories for the body of `steps`, event by event.

use crate::Files;

pub(crate) fn files() -> Files {
    // Four slots in two segments; a budget of four pages.
    let limits = vec![0x12, 3];
    let solo = vec![0, 3, 0, 3, 0, 18, 0, 18, 0];
    // Two pages, reserved and committed.
    let save = vec![7, 0, 0x02, 0, 13, 0, 1, 13, 0, 0];
    let query = vec![4, 0, 0x02, 0];
    let (restore, release, cancel) = (vec![10, 0xf0, 0], vec![10, 0xf0, 1], vec![10, 0xf0, 2]);
    let part = |first: u8, pages: u8| vec![10, 0xf0, (first | pages << 3) * 3];
    let copy_done = vec![11, 0, 0xf0];
    let close = vec![1, 0];
    let (exit, attested) = (vec![2, 0], vec![2, 128]);
    let story = |parts: &[&Vec<u8>]| {
        let mut bytes = limits.clone();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes
    };
    let pair = vec![0, 0, 0, 0, 1, 0, 0, 2, 0, 3, 0, 3, 1, 18, 0, 18, 0];
    // Both shards of a page are saved and asked for.
    let both = vec![7, 2, 1, 0, 13, 1, 1, 13, 0, 0, 4, 2, 1, 0];
    // Two instances of one namespace.
    let two = vec![0, 3, 0, 0, 4, 0, 0, 5, 0, 3, 2, 3, 0, 18, 0, 18, 0];
    vec![
        ("save_and_restore", story(&[&solo, &save, &query, &restore, &copy_done, &release])),
        // The second of two pages; then the first, which is another part; then the second again.
        (
            "restore_of_a_part",
            story(&[&solo, &save, &query, &part(1, 1), &part(0, 1), &part(1, 1), &copy_done]),
        ),
        ("restore_outside", story(&[&solo, &save, &query, &part(1, 2), &part(7, 7), &part(4, 0), &restore])),
        ("release_before_the_copy_ends", story(&[&solo, &save, &query, &restore, &release, &copy_done])),
        ("cancel", story(&[&solo, &save, &query, &cancel])),
        ("closed_while_restoring", story(&[&solo, &save, &query, &restore, &close, &exit])),
        ("closed_while_saving", story(&[&solo, &save[..4].to_vec(), &close, &attested])),
        (
            "reconnected_while_saving",
            story(&[&solo, &save[..4].to_vec(), &vec![0, 3, 0], &vec![2, 129], &save]),
        ),
        ("attested_while_restoring", story(&[&solo, &save, &query, &restore, &close, &attested])),
        ("seat_taken", story(&[&solo, &vec![0, 7, 0, 3, 0]])),
        ("two_savers_of_one_page", story(&[&two, &vec![7, 2, 1, 0, 7, 1, 1, 0, 13, 2, 1, 13, 0, 0]])),
        ("fenced_while_restoring", story(&[&pair, &both, &restore, &vec![1, 2, 16, 1, 2, 16, 0, 2]])),
        ("stale_epoch", story(&[&solo, &vec![0, 3, 3]])),
        ("two_workers", story(&[&pair, &both, &restore])),
        ("fence", story(&[&pair, &vec![7, 2, 0x01, 0, 1, 2, 16, 1, 2, 16, 0, 2]])),
        ("expired_lease", story(&[&solo, &save, &query, &vec![19, 23], &release])),
        ("deadline", story(&[&solo, &save, &query, &query, &vec![4, 0, 2, 64, 19, 20], &restore])),
        (
            "evicted",
            story(&[&solo, &save, &vec![7, 0, 0x42, 0, 13, 0, 1, 13, 0, 0], &vec![7, 0, 0x82, 0], &query]),
        ),
        ("bad_page", story(&[&solo, &save, &query, &restore, &vec![12, 0, 0], &copy_done])),
        ("abort", story(&[&solo, &save[..4].to_vec(), &vec![15, 0, 0, 15, 0, 1, 15, 0, 1]])),
        ("wrong_page", story(&[&solo, &save[..4].to_vec(), &vec![13, 0, 0x80 | 9]])),
        ("reset", story(&[&solo, &save, &query, &vec![17, 0, 0, 17, 0x80, 2, 17, 0x40, 0], &release])),
        ("growth_failed", story(&[&vec![0, 3, 0, 3, 0, 18, 128, 18, 128, 19, 31], &save])),
        ("bad_registrations", story(&[&vec![0, 0x13, 0, 0, 6, 0, 0, 7, 0, 0, 0x0b, 0]])),
        ("probe", story(&[&vec![0, 3, 0, 18, 0, 18, 0, 7, 0, 1, 6, 13, 0, 0, 4, 0, 1, 6]])),
        ("revisions", story(&[&solo, &save, &query, &vec![4, 0x80, 2, 0, 4, 0x90, 2, 0, 4, 0xf0, 3, 0]])),
        ("nobody", story(&[&vec![1, 63, 2, 63, 4, 63, 2, 0, 13, 63, 0, 16, 63, 63, 18, 99]])),
    ]
}
