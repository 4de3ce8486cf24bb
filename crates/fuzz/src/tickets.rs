//! What a scheduler sends to its workers through the engine.

use crate::allocated_bytes;
use orbitkv_client::{Ticket, TicketKind};
use orbitkv_copy::crc64;

/// The bytes as a ticket, and again with the checksum that belongs behind them.
pub fn tickets(input: &[u8]) {
    check(input);
    let mut signed = input.to_vec();
    signed.extend_from_slice(&crc64(input).to_le_bytes());
    check(&signed);
}

fn check(bytes: &[u8]) {
    let (decoded, allocated) = allocated_bytes(|| Ticket::decode(bytes));
    assert!(allocated <= 2 * bytes.len(), "{allocated} bytes for a ticket of {}", bytes.len());
    let Ok(ticket) = decoded else { return };
    let hashes = if ticket.kind == TicketKind::Save { ticket.pages() } else { 0 };
    assert_eq!(ticket.hashes.len(), hashes);
    let parts = ticket.sections.iter().map(|section| section.pages as usize * usize::from(section.shards));
    assert_eq!(ticket.parts.len(), parts.sum::<usize>());
    let again = ticket.encode();
    assert_eq!(again.len(), bytes.len());
    assert_eq!(Ticket::decode(&again), Ok(ticket));
}
