//! Contracts against a definition that is too slow to use: a boundary is restorable if every page that its
//! ranges name is there.

#![allow(clippy::unwrap_used)]

use orbitkv_contract::{Contract, ContractError, GroupRange, GroupRule, RangeError, Rule, common_boundaries};
use proptest::prelude::*;

fn group(group: u16, page_tokens: u32, rule: Rule) -> GroupRule {
    GroupRule { group, page_tokens, rule }
}

fn range(group: u16, first_page: u32, end_page: u32) -> GroupRange {
    GroupRange { group, first_page, end_page }
}

/// Full attention, a window of 100 tokens (7 pages of 16), and a state every 64 tokens.
fn hybrid() -> Contract {
    let groups = [
        group(0, 16, Rule::Prefix),
        group(1, 16, Rule::Window { tokens: 100 }),
        group(2, 64, Rule::Checkpoint),
    ];
    Contract::compile(0, &groups).unwrap()
}

#[test]
fn each_rule_takes_its_pages() {
    let contract = hybrid();
    assert_eq!(contract.boundary_tokens(), 64);
    let ranges = contract.required_ranges(0, 192, 12).unwrap();
    assert_eq!(ranges, [range(0, 0, 12), range(1, 5, 12), range(2, 2, 3)]);
    let ranges = contract.required_ranges(128, 192, 12).unwrap();
    assert_eq!(ranges, [range(0, 8, 12), range(1, 8, 12), range(2, 2, 3)], "nothing that the engine holds");
    assert_eq!((contract.hash_index(16, 11), contract.hash_index(64, 2)), (11, 11), "the last block's hash");
}

#[test]
fn contradictions_are_refused() {
    let prefix = |number, tokens| group(number, tokens, Rule::Prefix);
    let compile = |hash_tokens, groups: &[GroupRule]| Contract::compile(hash_tokens, groups).unwrap_err();
    assert_eq!(compile(0, &[]), ContractError::NoGroups);
    assert_eq!(compile(0, &[prefix(3, 16), prefix(3, 16)]), ContractError::GroupTwice { group: 3 });
    assert_eq!(compile(16, &[prefix(3, 0)]), ContractError::EmptyPage { group: 3 });
    let between = ContractError::PageBetweenHashes { group: 3, page_tokens: 24, hash_tokens: 16 };
    assert_eq!(compile(16, &[prefix(3, 24)]), between);
    assert_eq!(compile(0, &[prefix(1, 16), prefix(3, 24)]), between, "the smallest page is the hash");
    let far = compile(1, &[prefix(1, 1_048_573), prefix(2, 1_048_575)]);
    assert!(matches!(far, ContractError::BoundariesTooFar { .. }), "{far}");
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let contract = hybrid();
    let refused = |start, end, hashes| contract.required_ranges(start, end, hashes).unwrap_err();
    assert_eq!(refused(64, 64, 12), RangeError::Empty { start_tokens: 64, end_tokens: 64 });
    assert_eq!(refused(128, 64, 12), RangeError::Empty { start_tokens: 128, end_tokens: 64 });
    let unaligned = |what, got| RangeError::NoBoundary { what, got, boundary_tokens: 64 };
    assert_eq!(refused(16, 64, 12), unaligned("start", 16));
    assert_eq!(refused(0, 80, 12), unaligned("end", 80));
    assert_eq!(
        refused(0, 256, 12),
        RangeError::PastBatch { end_tokens: 256, hashes: 12, hashed_tokens: 192 }
    );
    assert!(contract.restorable_boundaries(16, 2, |_, _| true).is_err(), "even with nothing covered");
}

#[test]
fn a_caller_that_counts_otherwise_is_told_which_group() {
    let required = hybrid().required_ranges(0, 192, 12).unwrap();
    Contract::check_ranges(&required, &required).unwrap();
    let mut reversed = required.clone();
    reversed.reverse();
    Contract::check_ranges(&required, &reversed).unwrap();
    let named = |change: fn(&mut Vec<GroupRange>)| {
        let mut named = required.clone();
        change(&mut named);
        Contract::check_ranges(&required, &named).unwrap_err()
    };
    assert_eq!(named(|n| n.push(n[1])), RangeError::GroupTwice { group: 1 });
    let other = |group, got: &str, want: &str| RangeError::OtherRange {
        group,
        got: got.to_owned(),
        want: want.to_owned(),
    };
    assert_eq!(named(|n| n[1].first_page = 6), other(1, "6 to 12", "5 to 12"));
    assert_eq!(named(|n| n.truncate(2)), other(2, "none", "2 to 3"));
    assert_eq!(named(|n| n.push(range(9, 0, 1))), other(9, "0 to 1", "none"));
}

#[test]
fn ranks_agree_only_on_what_all_have() {
    let sets: [&[u32]; 3] = [&[64, 128, 192, 256], &[64, 192, 320], &[32, 64, 192]];
    assert_eq!(common_boundaries(sets), [64, 192]);
    assert_eq!(common_boundaries([&[64][..], &[]]), [] as [u32; 0]);
    assert_eq!(common_boundaries([]), [] as [u32; 0]);
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::Prefix),
        (1u32..200).prop_map(|tokens| Rule::Window { tokens }),
        Just(Rule::Checkpoint)
    ]
}

proptest! {
    /// The quick answer is the slow one, whatever the rules, the start and the pages that are there.
    #[test]
    fn boundaries_are_those_whose_ranges_are_there(
        groups in prop::collection::vec((prop::sample::select(vec![8u32, 16, 24]), rules()), 1..4),
        start in 0u32..6,
        hashes in 0usize..60,
        seed in any::<u64>(),
        percent in prop::sample::select(vec![0u64, 60, 95, 100]),
    ) {
        let groups: Vec<GroupRule> =
            (0u16..).zip(groups).map(|(n, (page_tokens, rule))| group(n, page_tokens, rule)).collect();
        let contract = Contract::compile(8, &groups).unwrap();
        let has = |g: &GroupRule, page: u32| {
            let mixed = (seed ^ u64::from(g.group) << 32 ^ u64::from(page)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 33) % 100 < percent
        };
        let start = start * contract.boundary_tokens();
        let got = contract.restorable_boundaries(start, hashes, has).unwrap();
        let all = (1..).map(|n| start + n * contract.boundary_tokens());
        let covered = all.take_while(|end| *end <= contract.last_boundary(hashes));
        let want: Vec<u32> = covered.filter(|&end| {
            let ranges = contract.required_ranges(start, end, hashes).unwrap();
            ranges.iter().zip(&groups).all(|(r, g)| (r.first_page..r.end_page).all(|page| has(g, page)))
        }).collect();
        prop_assert_eq!(got, want);
    }
}
