//! Writes the hand-made part of the corpora: `cargo run -p orbitkv-fuzz --example seeds`. To be run
//! again when a message, the ticket or the input of a body changes; what a fuzzer found stays.

mod ahead;
mod segments;
mod steps;

use anyhow::{Context, Result};
use orbitkv_client::{PagePart, Section, Ticket, TicketKind};
use orbitkv_wire::{
    CommitItem, GrantedBody, Header, Hello, HelloGroup, HelloRole, KeepItem, Kind, MAX_KEPT, Part, QueryMode,
    QueryRule, RangeItem, RecoverBody, RecoveredBody, RecoveredItem, Resume, Slot, ToClient, ToManager,
    WireMiss, write_frame,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the page count of a ticket is.
const TICKET_PAGES: std::ops::Range<usize> = 64..68;
const TICKET_SHARDS: std::ops::Range<usize> = 58..60;

fn main() -> Result<()> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let seeds = [
        ("to_manager", [to_manager()?, recoveries()].concat()),
        ("to_client", to_client()),
        ("frames", frames()?),
        ("tickets", tickets()),
        ("steps", [steps::files(), ahead::files()].concat()),
        ("segments", segments::files()),
    ];
    for (target, files) in seeds {
        let directory: PathBuf = corpora.join(target);
        fs::create_dir_all(&directory)?;
        for (name, bytes) in files {
            let path = directory.join(name);
            fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Names and contents.
type Files = Vec<(&'static str, Vec<u8>)>;

fn payload(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), payload].concat()
}

fn hello() -> Hello {
    let group = HelloGroup {
        group: 0,
        page_bytes: 4096,
        block_tokens: 16,
        shard_count: 1,
        rule: "prefix".to_owned(),
    };
    Hello {
        engine: "vllm".to_owned(),
        engine_version: "0.29.0".to_owned(),
        model: "m".to_owned(),
        role: HelloRole::Worker,
        rank: 0,
        world_size: 1,
        client: "0".repeat(32),
        epoch: 1,
        instance: "1".repeat(32),
        namespace: "2".repeat(64),
        groups: vec![group],
        hash_tokens: 0,
        verify_restore: None,
        resume: Some(Resume { session: 9, copies_ended: true }),
    }
}

fn slot(segment: u32) -> Slot {
    Slot { segment: segment.into(), index: 2.into(), generation: 3.into() }
}

fn recoveries() -> Files {
    let hashes = [[7; 32], [8; 32]];
    let ranges = [RangeItem { first_page: 1.into(), end_page: 3.into(), ..RangeItem::default() }];
    let recover = RecoverBody {
        start_tokens: 16,
        end_tokens: 32,
        deadline_ms: 500,
        mode: QueryMode::Prepare,
        ranges: &ranges,
        hashes: &hashes,
    };
    let messages = [
        ("recover", ToManager::Recover(recover)),
        ("recover_any_range", ToManager::Recover(RecoverBody { ranges: &[], ..recover })),
        ("candidates", ToManager::Candidates { start_tokens: 16, hashes: &hashes }),
    ];
    let mut bytes = Vec::new();
    let file = |(name, message): (&'static str, ToManager<'_>)| {
        message.encode(&mut bytes);
        (name, payload(message.kind() as u16, &bytes))
    };
    messages.into_iter().map(file).collect()
}

fn to_manager() -> Result<Files> {
    let json = hello().encode()?;
    let (hashes, slots) = ([[7; 32], [8; 32]], [slot(0), slot(1)]);
    let items = [CommitItem { slot: slot(0), hash: [7; 32], crc: 5.into() }];
    let parent = Some([6; 32]);
    let kept = [KeepItem { operation: 9.into(), revision: 1.into(), zero: 0.into() }; MAX_KEPT + 1];
    let prepare = QueryRule { mode: QueryMode::Prepare, strict: true, ..QueryRule::default() };
    let warm_up = QueryRule { mode: QueryMode::WarmUp, wait_full_prefix: true, ..QueryRule::default() };
    let memory_only = QueryRule { memory_only: true, ..QueryRule::default() };
    let messages = [
        ("hello", ToManager::Hello(&json)),
        ("attest", ToManager::Attest { passed: true }),
        (
            "query",
            ToManager::Query { group: 0, deadline_ms: 500, rule: QueryRule::default(), hashes: &hashes },
        ),
        ("query_prepares", ToManager::Query { group: 0, deadline_ms: 0, rule: prepare, hashes: &hashes }),
        (
            "query_memory_only",
            ToManager::Query { group: 0, deadline_ms: 9, rule: memory_only, hashes: &hashes },
        ),
        ("query_warms_up", ToManager::Query { group: 0, deadline_ms: 0, rule: warm_up, hashes: &hashes }),
        ("keep", ToManager::Keep(&kept[..2])),
        ("keep_most", ToManager::Keep(&kept[..MAX_KEPT])),
        ("keep_too_many", ToManager::Keep(&kept)),
        ("restore", ToManager::Restore { first: 1, pages: 2 }),
        ("release", ToManager::Release),
        ("cancel", ToManager::Cancel),
        ("copy_done", ToManager::CopyDone { session: 1, operation: 2, revision: 3 }),
        ("bad_page", ToManager::BadPage { slot: slot(0) }),
        ("reserve", ToManager::Reserve { group: 0, parent, first_depth: 4, hashes: &hashes }),
        ("reserve_first", ToManager::Reserve { group: 0, parent: None, first_depth: 0, hashes: &hashes }),
        ("commit", ToManager::Commit(&items)),
        ("abort", ToManager::Abort(&slots)),
        ("fenced", ToManager::Fenced { scheduler: 1 }),
        ("forget", ToManager::Forget { group: 0, hashes: &hashes }),
        ("reset", ToManager::Reset),
        ("copies_ended", ToManager::CopiesEnded { session: 1 }),
    ];
    let mut files: Files = Vec::new();
    let mut bytes = Vec::new();
    for (name, message) in messages {
        message.encode(&mut bytes);
        files.push((name, payload(message.kind() as u16, &bytes)));
    }
    ToManager::Query { group: 0, deadline_ms: 500, rule: QueryRule::default(), hashes: &hashes }
        .encode(&mut bytes);
    files.push(("query_torn_hash", payload(Kind::Query as u16, &bytes[..bytes.len() - 1])));
    files.push(("query_torn_head", payload(Kind::Query as u16, &bytes[..5])));
    files.push(("query_no_hashes", payload(Kind::Query as u16, &bytes[..8])));
    bytes[6] = 3;
    files.push(("query_mode_3", payload(Kind::Query as u16, &bytes)));
    bytes[6..8].copy_from_slice(&[0, 4]);
    files.push(("query_flags_4", payload(Kind::Query as u16, &bytes)));
    ToManager::Keep(&kept[..2]).encode(&mut bytes);
    files.push(("keep_torn", payload(Kind::Keep as u16, &bytes[..bytes.len() - 1])));
    files.push(("keep_nothing", payload(Kind::Keep as u16, &[])));
    ToManager::Reserve { group: 0, parent, first_depth: 4, hashes: &hashes }.encode(&mut bytes);
    bytes[6..8].copy_from_slice(&u16::MAX.to_le_bytes());
    files.push(("reserve_parent_65535", payload(Kind::Reserve as u16, &bytes)));
    files.push(("attest_2", payload(Kind::Attest as u16, &[2])));
    files.push(("restore_torn", payload(Kind::Restore as u16, &[0; 7])));
    files.push(("restore_longer", payload(Kind::Restore as u16, &[0; 9])));
    files.push(("kind_0", payload(0, &[])));
    files.push(("kind_of_a_manager", payload(Kind::Welcome as u16, &[0; 16])));
    files.push(("hello_torn", payload(Kind::Hello as u16, &json[..json.len() / 2])));
    files.push(("hello_nested", payload(Kind::Hello as u16, "[".repeat(200).as_bytes())));
    let huge = String::from_utf8_lossy(&json).replacen("\"epoch\":1", "\"epoch\":4294967296", 1);
    files.push(("hello_epoch_2_32", payload(Kind::Hello as u16, huge.as_bytes())));
    Ok(files)
}

fn part() -> Part {
    Part { slot: slot(1), crc: 4.into() }
}

fn to_client() -> Files {
    let parts = [part(); 4];
    let granted = GrantedBody { shards: 2, statuses: &[0, 1, 2, 3, 0], parts: &parts };
    let range = |group: u16| RecoveredItem {
        group: group.into(),
        shards: (1 + group).into(),
        first_page: 3.into(),
        pages: (2 - u32::from(group)).into(),
    };
    let recovered = RecoveredBody { ranges: &[range(0), range(1)], parts: &parts };
    let messages = [
        ("recovered", ToClient::Recovered(recovered)),
        ("candidates_found", ToClient::Candidates(&[32.into(), 64.into()])),
        ("welcome", ToClient::Welcome { boot: 7 }),
        ("rejected", ToClient::Rejected { text: "no" }),
        ("waiting", ToClient::Waiting),
        ("prepared", ToClient::Prepared { pages: 3 }),
        ("warmed", ToClient::Warmed { pages: u32::MAX }),
        ("ready", ToClient::Ready { pages: 2, shards: 2, parts: &parts }),
        ("miss", ToClient::Miss(WireMiss::Budget)),
        ("tier_reads", ToClient::TierReads { pages: 3, left_pages: 1, micros: 1 << 40 }),
        ("granted", ToClient::Granted(granted)),
        ("refused", ToClient::Refused { text: "no" }),
        ("instance_state", ToClient::InstanceState { active: true }),
        ("fence", ToClient::Fence { scheduler: 1 }),
        ("segment", ToClient::Segment { segment: 0, slot_bytes: 8192, bytes: 1 << 21 }),
        ("segment_gone", ToClient::SegmentGone { segment: u32::MAX }),
        ("reset_done", ToClient::ResetDone),
    ];
    let mut files: Files = Vec::new();
    let mut bytes = Vec::new();
    for (name, message) in messages {
        message.encode(&mut bytes);
        files.push((name, payload(message.kind() as u16, &bytes)));
    }
    let operation = |state: u8, miss: u8, shards: u16, pages: u32| {
        let head = [&[state, miss][..], &shards.to_le_bytes(), &pages.to_le_bytes()].concat();
        payload(Kind::Operation as u16, &head)
    };
    files.push(("ready_2_32_pages", operation(1, 0, 1, u32::MAX)));
    files.push(("ready_2_48_parts", operation(1, 0, u16::MAX, u32::MAX)));
    files.push(("ready_pages_of_no_shards", operation(1, 0, 0, u32::MAX)));
    files.push(("state_5", operation(5, 0, 0, 0)));
    files.push(("prepared_with_shards", operation(3, 0, 1, 0)));
    files.push(("warmed_with_a_miss", operation(4, 1, 0, 1)));
    files.push(("miss_7", operation(2, 7, 0, 0)));
    let grants = |pages: u32, shards: u16, rest: &[u8]| {
        let head = [&pages.to_le_bytes()[..], &shards.to_le_bytes(), &[0, 0], rest].concat();
        payload(Kind::Granted as u16, &head)
    };
    files.push(("granted_2_32_pages", grants(u32::MAX, 1, &[0])));
    files.push(("granted_no_shards", grants(2, 0, &[0, 0])));
    files.push(("granted_status_4", grants(1, 1, &[4])));
    files.push(("granted_too_few_parts", grants(2, 2, &[0; 42])));
    let ranges =
        |count: u32, range: &[u8]| payload(Kind::Recovered as u16, &[&count.to_le_bytes(), range].concat());
    files.push(("recovered_2_32_ranges", ranges(u32::MAX, &[0; 12])));
    files.push(("recovered_2_32_pages", ranges(1, &[0, 0, 1, 0, 0, 0, 0, 0, 255, 255, 255, 255])));
    files.push(("recovered_no_shards", ranges(1, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])));
    files.push(("candidates_torn", payload(Kind::CandidatesFound as u16, &[1; 7])));
    files.push(("tier_reads_torn", payload(Kind::TierReads as u16, &[1; 15])));
    files.push(("rejected_not_utf8", payload(Kind::Rejected as u16, b"no\xff\xfe")));
    files.push(("segment_torn", payload(Kind::Segment as u16, &[1; 23])));
    files.push(("kind_65535", payload(u16::MAX, &[1; 8])));
    files.push(("kind_of_a_client", payload(Kind::Query as u16, &[1; 40])));
    files
}

/// A piece of a stream for the body of `frames`: raw bytes.
fn raw(bytes: &[u8]) -> Vec<u8> {
    let pieces = bytes.chunks(255).map(|c| [&[255, u8::try_from(c.len()).unwrap_or(0)], c].concat());
    pieces.collect::<Vec<_>>().concat()
}

fn frames() -> Result<Files> {
    let kinds = (0..u8::try_from(Kind::ALL.len())?).map(|index| vec![index, 3, 1, 2, 3]);
    let all = [vec![1], kinds.collect::<Vec<_>>().concat()].concat();
    let mut one = Vec::new();
    write_frame(&mut one, Kind::Reset, (1, 2, 3, 4), &[5; 9])?;
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = one.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        [vec![9], raw(&bytes)].concat()
    };
    Ok(vec![
        ("every_kind", all),
        ("one", changed(0, &[])),
        ("two_and_a_half", [vec![63], raw(&one), raw(&one), raw(&one[..30])].concat()),
        ("torn_header", [vec![3], raw(&one[..size_of::<Header>() - 1])].concat()),
        ("torn_payload", [vec![64], raw(&one[..one.len() - 1])].concat()),
        ("no_magic", changed(0, b"HTTP")),
        ("version_1", changed(4, &[1, 0])),
        ("kind_99", changed(6, &[99, 0])),
        ("length_2_32", changed(32, &u32::MAX.to_le_bytes())),
        ("length_at_the_limit", changed(32, &(1_u32 << 20).to_le_bytes())),
        ("length_above_the_limit", changed(32, &((1_u32 << 20) + 1).to_le_bytes())),
        ("checksum", changed(36, &[0; 4])),
        ("bad_behind_good", [vec![200], vec![2, 4, 1, 1, 1, 1], raw(&[0x5a; 80])].concat()),
        ("empty", vec![0]),
    ])
}

fn tickets() -> Files {
    let ticket = |kind, pages: usize, shards: u16| Ticket {
        kind,
        boot: 1,
        scheduler: 2,
        operation: 3,
        revision: 4,
        sections: vec![Section {
            group: 0,
            first_page: 0,
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            shards,
        }],
        issued_us: 5,
        hashes: if kind == TicketKind::Save { vec![[9; 32]; pages] } else { Vec::new() },
        parts: vec![PagePart { segment: 1, index: 2, generation: 3, crc: 4 }; pages * usize::from(shards)],
    };
    let (restore, save) =
        (ticket(TicketKind::Restore, 3, 2).encode(), ticket(TicketKind::Save, 2, 2).encode());
    // The body adds the checksum.
    let unsigned = |bytes: &[u8]| bytes[..bytes.len() - 8].to_vec();
    let changed = |at: std::ops::Range<usize>, with: &[u8]| {
        let mut bytes = unsigned(&save);
        bytes[at].copy_from_slice(with);
        bytes
    };
    vec![
        ("restore", unsigned(&restore)),
        ("save", unsigned(&save)),
        ("restore_signed", restore.clone()),
        ("save_signed", save.clone()),
        ("no_pages", unsigned(&ticket(TicketKind::Save, 0, 1).encode())),
        ("torn", save[..save.len() / 2].to_vec()),
        ("torn_head", save[..20].to_vec()),
        ("longer", [unsigned(&save), vec![0]].concat()),
        ("damaged", [&save[..save.len() - 1], &[!save[save.len() - 1]]].concat()),
        ("magic", changed(0..4, b"OKT0")),
        ("kind_2", changed(4..5, &[2])),
        ("pages_2_32", changed(TICKET_PAGES, &u32::MAX.to_le_bytes())),
        ("pages_above_the_limit", changed(TICKET_PAGES, &16_385_u32.to_le_bytes())),
        ("shards_0", changed(TICKET_SHARDS, &[0, 0])),
        ("shards_65535", changed(TICKET_SHARDS, &u16::MAX.to_le_bytes())),
        ("pages_and_shards_exchanged", changed(52..58, &[4, 0, 0, 0, 1, 0])),
        ("reserved_not_zero", changed(58..64, &[1; 6])),
        ("empty", Vec::new()),
    ]
}
