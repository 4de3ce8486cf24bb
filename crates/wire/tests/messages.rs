//! Payloads: what is encoded is decoded, and no payload can do harm.

mod common;

use common::{TO_CLIENT, TO_MANAGER, fields};
use orbitkv_wire::{
    Hello, HelloGroup, HelloRole, Kind, MAX_GROUPS, MAX_HASHES, Part, QueryRule, RecoveredBody,
    RecoveredItem, Resume, ToClient, ToManager, WireError,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn every_message_to_the_manager_comes_back(fields in fields()) {
        let mut payload = vec![7];
        for which in 0..TO_MANAGER {
            let message = fields.to_manager(which);
            message.encode(&mut payload);
            prop_assert_eq!(ToManager::decode(message.kind(), &payload), Ok(message));
        }
    }

    #[test]
    fn every_message_to_a_client_comes_back(fields in fields()) {
        let mut payload = vec![7];
        for which in 0..TO_CLIENT {
            let message = fields.to_client(which);
            message.encode(&mut payload);
            prop_assert_eq!(ToClient::decode(message.kind(), &payload), Ok(message));
        }
    }

    #[test]
    fn a_kind_of_the_other_direction_is_refused(fields in fields()) {
        let mut payload = Vec::new();
        for which in 0..TO_CLIENT {
            let message = fields.to_client(which);
            message.encode(&mut payload);
            prop_assert_eq!(
                ToManager::decode(message.kind(), &payload),
                Err(WireError::Kind(message.kind() as u16))
            );
        }
        for which in 0..TO_MANAGER {
            let message = fields.to_manager(which);
            message.encode(&mut payload);
            prop_assert_eq!(
                ToClient::decode(message.kind(), &payload),
                Err(WireError::Kind(message.kind() as u16))
            );
        }
    }

    #[test]
    fn random_payloads_never_panic_and_what_decodes_encodes_again(
        kind in prop::sample::select(Kind::ALL),
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut again = Vec::new();
        if let Ok(message) = ToManager::decode(kind, &payload) {
            message.encode(&mut again);
            prop_assert_eq!(ToManager::decode(kind, &again), Ok(message));
        }
        if let Ok(message) = ToClient::decode(kind, &payload) {
            message.encode(&mut again);
            prop_assert_eq!(ToClient::decode(kind, &again), Ok(message));
        }
        let _ = Hello::decode(&payload);
    }

    /// Counts that promise more than the payload holds, in the two messages that carry counts.
    #[test]
    fn random_counts_never_panic(counts in any::<[u32; 2]>(), rest in prop::collection::vec(0u8..4, 0..200)) {
        for kind in [Kind::Operation, Kind::Granted] {
            let mut payload = Vec::new();
            payload.extend(counts[0].to_le_bytes());
            payload.extend(counts[1].to_le_bytes());
            payload.extend(&rest);
            if let Ok(ToClient::Granted(body)) = ToClient::decode(kind, &payload) {
                prop_assert!(body.statuses.len() <= MAX_HASHES);
                prop_assert!((0..body.statuses.len()).all(|i| body.status(i).is_some()));
            }
        }
    }
}

fn hello() -> Hello {
    Hello {
        engine: "vllm".to_owned(),
        engine_version: "0.29.0".to_owned(),
        model: "m".to_owned(),
        role: HelloRole::Worker,
        rank: 1,
        world_size: 2,
        client: "0".repeat(32),
        epoch: 3,
        instance: "1".repeat(32),
        namespace: "2".repeat(64),
        groups: vec![HelloGroup {
            group: 0,
            page_bytes: 1,
            block_tokens: 16,
            shard_count: 2,
            rule: "prefix".to_owned(),
        }],
        hash_tokens: 16,
        verify_restore: Some("sample:16".to_owned()),
        resume: Some(Resume { session: 9, copies_ended: true }),
    }
}

#[test]
fn a_hello_comes_back() {
    let hello = hello();
    assert_eq!(Hello::decode(&hello.encode().unwrap()), Ok(hello));
}

#[test]
fn a_hello_with_a_field_unknown_or_missing_names_it() {
    let text = String::from_utf8(hello().encode().unwrap()).unwrap();
    let unknown = text.replacen('{', r#"{"colour":"red","#, 1);
    let error = Hello::decode(unknown.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("colour"), "{error}");
    let missing = text.replacen("epoch", "epoque", 1);
    let error = Hello::decode(missing.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("epoque"), "{error}");
}

#[test]
fn more_hashes_than_a_frame_holds_are_refused() {
    let hashes = vec![[1; 32]; MAX_HASHES + 1];
    let mut payload = Vec::new();
    ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &hashes }
        .encode(&mut payload);
    assert!(matches!(ToManager::decode(Kind::Query, &payload), Err(WireError::TooMany { .. })));
    ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &hashes[1..] }
        .encode(&mut payload);
    assert!(ToManager::decode(Kind::Query, &payload).is_ok());
}

#[test]
fn a_restore_is_two_numbers_and_nothing_else() {
    let mut payload = Vec::new();
    let restore = ToManager::Restore { first: 3, pages: 0x0102 };
    restore.encode(&mut payload);
    assert_eq!(payload, [3, 0, 0, 0, 2, 1, 0, 0]);
    assert_eq!(ToManager::decode(Kind::Restore, &payload), Ok(restore));
    payload.push(0);
    for got in [0, 4, 7, 9] {
        let refused = Err(WireError::Shape { kind: Kind::Restore.name(), got });
        assert_eq!(ToManager::decode(Kind::Restore, &payload[..got]), refused);
    }
}

#[test]
fn ranges_that_promise_other_parts_are_refused() {
    let range = |pages: u32, shards: u16| {
        let (group, first_page) = (3.into(), 9.into());
        RecoveredItem { group, shards: shards.into(), first_page, pages: pages.into() }
    };
    let decoded = |ranges: &[RecoveredItem], parts: usize| {
        let (parts, mut payload) = (vec![Part::default(); parts], Vec::new());
        ToClient::Recovered(RecoveredBody { ranges, parts: &parts }).encode(&mut payload);
        ToClient::decode(Kind::Recovered, &payload).map(|_| ())
    };
    assert_eq!(decoded(&[range(2, 2), range(1, 1)], 5), Ok(()));
    assert!(matches!(decoded(&[range(2, 2), range(1, 1)], 4), Err(WireError::Shape { .. })));
    assert!(matches!(decoded(&[range(u32::MAX, 2)], 6), Err(WireError::Shape { .. })));
    assert!(matches!(decoded(&[range(0, 2)], 0), Err(WireError::Value { what: "pages", .. })));
    assert!(matches!(decoded(&[range(5, 0)], 0), Err(WireError::Value { what: "shards", .. })));
    let many = [range(1, 1); MAX_GROUPS + 1];
    assert!(matches!(decoded(&many, MAX_GROUPS + 1), Err(WireError::TooMany { .. })));
    // A demand that names more ranges than its payload holds.
    let mut payload = vec![0; 16];
    payload[12] = 5;
    assert!(matches!(ToManager::decode(Kind::Recover, &payload), Err(WireError::Shape { .. })));
    payload[12] = 200;
    assert!(matches!(ToManager::decode(Kind::Recover, &payload), Err(WireError::TooMany { .. })));
}

#[test]
fn pages_without_shards_are_refused() {
    let refused = |kind: Kind, payload: &[u8]| {
        let error = WireError::Value { kind: kind.name(), what: "shards", got: 0 };
        assert_eq!(ToClient::decode(kind, payload), Err(error));
    };
    // 2^32 - 1 pages ready, in no part at all.
    refused(Kind::Operation, &[1, 0, 0, 0, 255, 255, 255, 255]);
    // Two pages granted, in no slot at all.
    refused(Kind::Granted, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
