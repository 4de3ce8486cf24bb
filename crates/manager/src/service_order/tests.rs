//! The order of service, by example and by property.
#![allow(clippy::expect_used, reason = "tests")]

use super::{DEMANDS_PER_AHEAD, READS_PER_WRITE, Service, ServiceOrder};
use orbitkv_core::{OperationId, Revision, SessionId, Ticket};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn ticket(number: u64) -> Ticket {
    Ticket { session: SessionId(1), operation: OperationId(number), revision: Revision(0) }
}

fn demand(number: u64) -> Service {
    Service::Demand(ticket(number))
}

fn ahead(number: u64) -> Service {
    Service::Ahead(ticket(number))
}

/// An order in which jobs of these services wait, and are named after them.
fn order(services: &[(Service, usize)]) -> ServiceOrder<Service> {
    let mut order = ServiceOrder::default();
    for &(service, count) in services {
        (0..count).for_each(|_| order.push(service, service));
    }
    order
}

fn drain<J>(order: &mut ServiceOrder<J>) -> Vec<J> {
    std::iter::from_fn(|| order.pop()).collect()
}

#[test]
fn short_reads_are_served_between_the_pages_of_a_long_one() {
    let mut order = order(&[(demand(1), 1000), (demand(2), 2), (demand(3), 1)]);
    let served: Vec<_> = std::iter::from_fn(|| order.pop()).take(6).collect();
    assert_eq!(served, [demand(1), demand(2), demand(3), demand(1), demand(2), demand(1)]);
    assert_eq!(drain(&mut order).len(), 1003 - 6);
}

#[test]
fn one_that_comes_back_at_once_overtakes_nobody() {
    let mut order = order(&[(demand(1), 1), (demand(2), 2), (demand(3), 1)]);
    assert_eq!(order.pop(), Some(demand(1)));
    order.push(demand(1), demand(1));
    assert_eq!(drain(&mut order), [demand(2), demand(3), demand(1), demand(2)]);
}

#[test]
fn demand_goes_before_reading_ahead_and_that_before_writes() {
    let mut order = order(&[(Service::Write, 1), (ahead(9), 1), (demand(1), 1)]);
    assert_eq!(drain(&mut order), [demand(1), ahead(9), Service::Write]);
}

#[test]
fn neither_reading_ahead_nor_writes_starve() {
    let mut order = order(&[(Service::Write, 3), (ahead(9), 4), (demand(1), 1000)]);
    let served: Vec<_> = std::iter::from_fn(|| order.pop()).take(48).collect();
    let places = |which| served.iter().enumerate().filter(move |(_, s)| **s == which).map(|(at, _)| at + 1);
    assert!(places(ahead(9)).eq([8, 17, 25, 34]), "{served:?}");
    assert!(places(Service::Write).eq([16, 32, 48]), "{served:?}");
}

#[test]
fn what_a_request_has_come_for_is_a_demand_from_then_on() {
    let mut order = order(&[(ahead(8), 2), (ahead(9), 2), (demand(1), 3)]);
    order.hasten(ticket(9));
    order.hasten(ticket(7));
    let taking_turns = [demand(1), ahead(9), demand(1), ahead(9), demand(1)];
    assert_eq!(drain(&mut order), [&taking_turns[..], &[ahead(8), ahead(8)]].concat());
}

#[derive(Clone, Debug)]
enum Step {
    Push(Service),
    Pop,
    Hasten(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..5_u64).prop_map(|n| Step::Push(demand(n))),
        3 => (1..5_u64).prop_map(|n| Step::Push(ahead(n))),
        1 => Just(Step::Push(Service::Write)),
        6 => Just(Step::Pop),
        1 => (1..5_u64).prop_map(Step::Hasten),
    ]
}

/// What must hold whatever comes, kept beside the order under test.
#[derive(Default)]
struct Model {
    /// Jobs by number, each lane in its order.
    waiting: Vec<(Service, usize)>,
    /// How often one that waits was passed by another of its class since it was last served.
    passes: BTreeMap<(Service, Service), u32>,
    passed_ahead: u32,
    passed_writes: u32,
}

fn class(service: Service) -> u8 {
    match service {
        Service::Demand(_) => 0,
        Service::Ahead(_) => 1,
        Service::Write => 2,
    }
}

impl Model {
    fn waits(&self, wanted: u8) -> bool {
        self.waiting.iter().any(|(service, _)| class(*service) == wanted)
    }

    fn hasten(&mut self, number: u64) {
        let (moved, rest) = self.waiting.drain(..).partition(|(service, _)| *service == ahead(number));
        self.waiting = rest;
        let moved: Vec<(Service, usize)> = moved;
        self.waiting.extend(moved.into_iter().map(|(_, job)| (demand(number), job)));
        self.passes.retain(|(who, _), _| *who != ahead(number));
        if !self.waits(1) {
            self.passed_ahead = 0;
        }
    }

    fn served(&mut self, job: Option<usize>) {
        let Some(job) = job else {
            assert!(self.waiting.is_empty(), "nothing is served while jobs wait");
            return;
        };
        let at = self.waiting.iter().position(|(_, other)| *other == job).expect("served once, and pushed");
        let (service, _) = self.waiting[at];
        assert!(self.waiting[..at].iter().all(|(other, _)| *other != service), "out of order in its lane");
        match class(service) {
            0 => {
                self.passed_ahead += u32::from(self.waits(1));
                self.passed_writes += u32::from(self.waits(2));
            }
            1 => {
                assert!(!self.waits(0) || self.passed_ahead == DEMANDS_PER_AHEAD, "before a demand");
                self.passed_ahead = 0;
                self.passed_writes += u32::from(self.waits(2));
            }
            _ => {
                let reads = self.waits(0) || self.waits(1);
                assert!(!reads || self.passed_writes == READS_PER_WRITE, "before a read");
                self.passed_writes = 0;
            }
        }
        assert!(self.passed_ahead <= DEMANDS_PER_AHEAD, "reading ahead starves");
        assert!(self.passed_writes <= READS_PER_WRITE, "writes starve");
        self.passes.retain(|(who, _), _| *who != service);
        let peers = self.waiting.iter().map(|(other, _)| *other);
        let mut peers: Vec<_> = peers.filter(|o| class(*o) == class(service) && *o != service).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            let passes = self.passes.entry((peer, service)).or_default();
            *passes += 1;
            assert!(*passes <= 1, "{peer:?} waits for a second page of {service:?}");
        }
        self.waiting.remove(at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Between two pages of one ticket, each other ticket of its class gets one page at most; classes pass
    /// each other only by the rule; every job is served once.
    #[test]
    fn every_order_is_fair_and_loses_nothing(steps in prop::collection::vec(step(), 0..400)) {
        let (mut order, mut model) = (ServiceOrder::default(), Model::default());
        for (job, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(service) => {
                    order.push(service, job);
                    model.waiting.push((service, job));
                }
                Step::Pop => model.served(order.pop()),
                Step::Hasten(number) => {
                    order.hasten(ticket(number));
                    model.hasten(number);
                }
            }
        }
        while !model.waiting.is_empty() {
            model.served(order.pop());
        }
        prop_assert!(order.pop().is_none());
    }
}
