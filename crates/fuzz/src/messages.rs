//! Payloads of both directions.

use crate::allocated_bytes;
use crate::bytes::Bytes;
use orbitkv_wire::{
    GrantStatus, Hello, Kind, MAX_HASHES, MAX_KEPT, MAX_PAYLOAD_BYTES, ToClient, ToManager, WireError,
};

/// Input: number of a kind (two bytes, little-endian), then a payload.
fn parse(input: &[u8]) -> Option<(Kind, &[u8])> {
    let mut bytes = Bytes::new(input);
    let number = bytes.u16();
    let payload = bytes.take(MAX_PAYLOAD_BYTES);
    match Kind::from_u16(number) {
        Ok(kind) => {
            assert_eq!(kind as u16, number);
            Some((kind, payload))
        }
        Err(error) => {
            assert_eq!(error, WireError::Kind(number));
            None
        }
    }
}

/// A client's message: decoding allocates nothing, and what is decoded encodes to itself.
pub fn to_manager(input: &[u8]) {
    let Some((kind, payload)) = parse(input) else { return };
    let (decoded, allocated) = allocated_bytes(|| ToManager::decode(kind, payload));
    assert_eq!(allocated, 0, "decoding borrows");
    let Ok(message) = decoded else { return };
    assert_eq!(message.kind(), kind);
    let mut again = Vec::new();
    message.encode(&mut again);
    assert!(again.len() <= payload.len(), "{kind:?} grew from {} to {}", payload.len(), again.len());
    assert_eq!(ToManager::decode(kind, &again), Ok(message));
    match message {
        ToManager::Hello(json) => hello(json),
        ToManager::Query { hashes, .. }
        | ToManager::Reserve { hashes, .. }
        | ToManager::Forget { hashes, .. } => assert!(hashes.len() <= MAX_HASHES),
        ToManager::Keep(items) => assert!(items.len() <= MAX_KEPT),
        _ => {}
    }
}

/// A registration: memory is a small multiple of the text, the result comes back from its own text.
fn hello(json: &[u8]) {
    let (decoded, allocated) = allocated_bytes(|| Hello::decode(json));
    // An error lists the fields there are, whatever the length of the text.
    assert!(allocated <= 4096 + 8 * json.len(), "{allocated} bytes for {} of JSON", json.len());
    let Ok(hello) = decoded else { return };
    let text = hello.encode();
    assert_eq!(text.and_then(|text| Hello::decode(&text)), Ok(hello));
}

/// A manager's message: as [`to_manager`], and counts that a client may trust.
pub fn to_client(input: &[u8]) {
    let Some((kind, payload)) = parse(input) else { return };
    let (decoded, allocated) = allocated_bytes(|| ToClient::decode(kind, payload));
    assert_eq!(allocated, 0, "decoding borrows");
    let Ok(message) = decoded else { return };
    assert_eq!(message.kind(), kind);
    let mut again = Vec::new();
    message.encode(&mut again);
    assert!(again.len() <= payload.len(), "{kind:?} grew from {} to {}", payload.len(), again.len());
    assert_eq!(ToClient::decode(kind, &again), Ok(message));
    match message {
        ToClient::Ready { pages, shards, parts } => {
            assert_eq!(parts.len(), pages as usize * usize::from(shards));
            assert!(pages as usize <= parts.len(), "{pages} pages in {} parts", parts.len());
        }
        ToClient::Granted(body) => {
            assert!(body.statuses.len() <= MAX_HASHES);
            let granted = body.statuses.iter().filter(|s| **s == GrantStatus::Slots as u8).count();
            assert_eq!(body.parts.len(), granted * usize::from(body.shards));
            assert!(granted <= body.parts.len(), "{granted} pages in {} parts", body.parts.len());
            assert!((0..body.statuses.len()).all(|page| body.status(page).is_some()));
            assert_eq!(body.status(body.statuses.len()), None);
        }
        _ => {}
    }
}
