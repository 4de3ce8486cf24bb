//! Writes to a cache directory: what each kind of damage looks like.

use super::Files;

const CHECKPOINT: u8 = 3;
const OWNER: u8 = 4;
const CUT: u8 = 64;
const SEAL: u8 = 128;

fn write(file: u8, block: u8, offset: u16, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    [&[file, block], &offset.to_le_bytes()[..], &[length], &bytes[..length.into()]].concat()
}

pub(crate) fn files() -> Files {
    let last = 15;
    vec![
        ("untouched", Vec::new()),
        ("page_header", write(0, 1, 20, &[1])),
        ("payload", write(0, 2, 3, &[1])),
        ("head", write(1, 0, 16, &[9])),
        ("footer", write(0, last - 1, 0, &[7; 32])),
        ("trailer", write(0, last, 60, &[200])),
        ("cut", write(1 | CUT, 7, 100, &[])),
        ("longer", write(1, 16, 10, &[1])),
        ("no_checkpoint", write(CHECKPOINT, 0, 0, &[0; 8])),
        ("no_owner", [write(OWNER, 0, 0, &[0; 8]), write(CHECKPOINT, 0, 0, &[0; 8])].concat()),
        (
            "headers_only",
            [write(0, last, 0, &[0; 8]), write(1, last, 0, &[0; 8]), write(CHECKPOINT, 0, 0, &[0])].concat(),
        ),
        // Sums that hold over numbers that lie.
        ("forged_trailer_entries", write(SEAL, last, 56, &[255, 255, 255, 255])),
        ("forged_trailer_block", write(SEAL, last, 48, &[0, 0, 0, 0, 14, 0, 0, 0])),
        ("forged_trailer_blocks", write(SEAL, last, 52, &[255, 255, 255, 0])),
        ("forged_length", write(SEAL, 1, 36, &[255, 255, 255, 255])),
        ("forged_sequence", write(2 | SEAL, 1, 24, &[255; 8])),
        ("forged_generation", write(1 | SEAL, 0, 16, &[255; 8])),
        ("forged_checkpoint_counts", write(CHECKPOINT | SEAL, 0, 24, &[255; 8])),
        ("forged_epoch", write(OWNER | SEAL, 0, 12, &[255; 4])),
        ("newer_format", write(1 | SEAL, 0, 8, &[2])),
    ]
}
