//! Frames: a stream cut anywhere gives the same frames, and a changed bit none.

mod common;

use common::{any_kind, fields, framed};
use orbitkv_wire::{FrameReader, Header, Kind, MAX_PAYLOAD_BYTES, WireError};
use proptest::prelude::*;

const HEADER_BYTES: usize = size_of::<Header>();
/// Where the length is in a header.
const LENGTH: std::ops::Range<usize> = 32..36;

type Owned = (Header, Kind, Vec<u8>);

/// Everything that `reader` gives now.
fn take(reader: &mut FrameReader) -> Result<Vec<Owned>, WireError> {
    let mut out = Vec::new();
    while let Some((header, kind, payload)) = reader.next_frame()? {
        out.push((header, kind, payload.to_vec()));
    }
    Ok(out)
}

fn read_whole(bytes: &[u8]) -> Result<Vec<Owned>, WireError> {
    let mut reader = FrameReader::default();
    reader.push(bytes);
    take(&mut reader)
}

proptest! {
    #[test]
    fn byte_by_byte_equals_whole(fields in fields(), kinds in prop::collection::vec(any_kind(), 1..4)) {
        let stream: Vec<u8> = kinds.iter().flat_map(|k| fields.frame(*k)).collect();
        let whole = read_whole(&stream).unwrap();
        prop_assert_eq!(whole.len(), kinds.len());
        let mut reader = FrameReader::default();
        let mut pieces = Vec::new();
        for byte in &stream {
            reader.push(std::slice::from_ref(byte));
            pieces.extend(take(&mut reader).unwrap());
        }
        prop_assert_eq!(reader.held(), 0);
        prop_assert_eq!(pieces, whole);
    }

    #[test]
    fn a_truncated_frame_waits(fields in fields(), kind in any_kind()) {
        let frame = fields.frame(kind);
        for cut in 0..frame.len() {
            let mut reader = FrameReader::default();
            reader.push(&frame[..cut]);
            prop_assert!(matches!(reader.next_frame(), Ok(None)), "cut at {} of {}", cut, frame.len());
            prop_assert_eq!(reader.held(), cut);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error(fields in fields(), kind in any_kind(), at in any::<prop::sample::Index>()) {
        let mut frame = fields.frame(kind);
        let bit = at.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        if LENGTH.contains(&(bit / 8)) {
            // A longer length waits for its bytes; when they are there, it is an error too.
            frame.resize(HEADER_BYTES + MAX_PAYLOAD_BYTES, 0);
        }
        prop_assert!(read_whole(&frame).is_err(), "bit {}", bit);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read_whole(&bytes);
    }

    /// Random fields behind the right magic and version, so that the later checks are reached.
    #[test]
    fn random_headers_never_panic(fields in fields(), mut bytes in prop::collection::vec(any::<u8>(), 64..400)) {
        let frame = fields.frame(0);
        bytes[..8].copy_from_slice(&frame[..8]);
        prop_assert!(!matches!(read_whole(&bytes), Ok(frames) if !frames.is_empty()));
    }
}

#[test]
fn every_kind_number_is_its_own() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_u16(*kind as u16), Ok(*kind));
    }
    for other in [0, 19, 127, 141, u16::MAX] {
        assert_eq!(Kind::from_u16(other), Err(WireError::Kind(other)));
    }
}

#[test]
fn another_version_is_named() {
    let mut frame = framed(Kind::Reset, (1, 1, 1, 1), &[]);
    frame[4] = 1;
    assert_eq!(read_whole(&frame), Err(WireError::Version { got: 1 }));
    let text = WireError::Version { got: 1 }.to_string();
    assert!(text.contains("version 1") && text.contains("speaks 2"), "{text}");
}

#[test]
fn a_length_above_the_limit_is_refused_before_its_bytes_come() {
    let mut frame = framed(Kind::Reset, (1, 1, 1, 1), &[]);
    frame[LENGTH].copy_from_slice(&u32::try_from(MAX_PAYLOAD_BYTES + 1).unwrap().to_le_bytes());
    assert_eq!(read_whole(&frame), Err(WireError::TooLong { got: MAX_PAYLOAD_BYTES as u64 + 1 }));
    let over = vec![0; MAX_PAYLOAD_BYTES + 1];
    assert!(matches!(Header::new(Kind::Commit, 0, 0, 0, 0, &over), Err(WireError::TooLong { .. })));
}
