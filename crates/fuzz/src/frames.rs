//! A byte stream, cut anywhere.

use crate::allocated_bytes;
use crate::bytes::Bytes;
use orbitkv_wire::{FrameReader, Header, Kind, MAX_PAYLOAD_BYTES, WireError, write_frame};

/// Most bytes of one stream.
const MAX_STREAM_BYTES: usize = 64 << 10;

/// All frames of a stream, and how it ended.
type Cut = (Vec<(Header, Kind, Vec<u8>)>, Result<usize, WireError>);

/// Input: one byte that chooses chunks, then pieces of a stream: a byte that says what it is, a length
/// byte, content. A piece is raw, or the payload of a well-formed frame: no fuzzer guesses a CRC.
fn stream(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    while !bytes.is_empty() && stream.len() < MAX_STREAM_BYTES {
        let (what, length) = (usize::from(bytes.u8()), usize::from(bytes.u8()));
        let content = bytes.take(length);
        match Kind::ALL.get(what) {
            // 255 bytes of payload fit any frame.
            Some(kind) => {
                let ids = (7, 1, u64::from(content.first().copied().unwrap_or(0)), 2);
                assert!(write_frame(&mut stream, *kind, ids, content).is_ok());
            }
            None => stream.extend_from_slice(content),
        }
    }
    stream
}

fn cut<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Cut {
    let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
    for chunk in chunks {
        let before = reader.held();
        let ((), allocated) = allocated_bytes(|| reader.push(chunk));
        // A vector that grows may double.
        assert!(allocated <= 2 * (before + chunk.len()).max(64), "{allocated} bytes for {}", chunk.len());
        loop {
            let (next, allocated) = allocated_bytes(|| reader.next_frame());
            assert_eq!(allocated, 0, "a frame is awaited without making room for it");
            match next {
                Ok(Some((header, kind, payload))) => {
                    assert_eq!(header.length.get() as usize, payload.len());
                    assert_eq!(header.check(), Ok(kind));
                    frames.push((header, kind, payload.to_vec()));
                }
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
        assert!(reader.held() < size_of::<Header>() + MAX_PAYLOAD_BYTES, "{} bytes held", reader.held());
    }
    (frames, Ok(reader.held()))
}

/// Frames, their order and the error at the end are the same however the stream is cut.
pub fn frames(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let seed = bytes.u8();
    let stream = stream(&mut bytes);
    let whole = cut(std::iter::once(&stream[..]));
    assert!(whole == cut(stream.chunks(usize::from(seed).max(1))), "cut every {seed} bytes");
    let mut rest = &stream[..];
    let mut size = usize::from(seed);
    let uneven = std::iter::from_fn(|| {
        size = size * 5 % 257 + 1;
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    });
    assert!(whole == cut(uneven), "cut unevenly from {seed}");
}
