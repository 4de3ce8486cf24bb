//! Double-entry accounting of the bytes that queries own.

use crate::InstanceId;
use std::collections::BTreeMap;

/// Where reserved bytes are booked. The first three are speculative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// Read ahead for nobody in particular.
    Warming,
    /// Being read ahead for one request.
    Preloading,
    /// Read ahead and not yet claimed.
    Prepared,
    /// Admitted, not all resident.
    Preparing,
    /// Leased and promised.
    Ready,
    /// Being copied by workers.
    Restoring,
}

impl Account {
    /// All accounts, in the order of metrics.
    pub const ALL: [Self; 6] =
        [Self::Warming, Self::Preloading, Self::Prepared, Self::Preparing, Self::Ready, Self::Restoring];

    /// Label in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warming => "warming",
            Self::Preloading => "preloading",
            Self::Prepared => "prepared",
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Restoring => "restoring",
        }
    }

    /// Whether bytes here count to the speculative share.
    #[must_use]
    pub fn speculative(self) -> bool {
        matches!(self, Self::Warming | Self::Preloading | Self::Prepared)
    }
}

/// One side of a transfer: the unreserved budget, or an account of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Free,
    Held(InstanceId, Account),
}

impl Side {
    fn speculative(self) -> bool {
        matches!(self, Self::Held(_, account) if account.speculative())
    }
}

type Row = [u64; Account::ALL.len()];

/// The books. `free + Σ accounts = budget` holds by construction: bytes only ever move.
#[derive(Clone, Debug)]
pub struct Ledger {
    budget_bytes: u64,
    free_bytes: u64,
    rows: BTreeMap<InstanceId, Row>,
    peak_bytes: u64,
    /// Sum of the speculative accounts, kept with each transfer so that its peak is exact.
    speculative_bytes: u64,
    speculative_peak_bytes: u64,
}

impl Ledger {
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            free_bytes: budget_bytes,
            rows: BTreeMap::new(),
            peak_bytes: 0,
            speculative_bytes: 0,
            speculative_peak_bytes: 0,
        }
    }

    /// Moves bytes from one side to the other.
    ///
    /// # Panics
    /// If `from` does not hold them: the caller checks the budget first, so this is a bug.
    pub(crate) fn transfer(&mut self, from: Side, to: Side, bytes: u64) {
        let source = self.side(from);
        assert!(*source >= bytes, "{from:?} holds {source} bytes, not {bytes}");
        *source -= bytes;
        let emptied = *source == 0;
        *self.side(to) += bytes;
        self.peak_bytes = self.peak_bytes.max(self.reserved_bytes());
        if from.speculative() {
            self.speculative_bytes -= bytes;
        }
        if to.speculative() {
            self.speculative_bytes += bytes;
            self.speculative_peak_bytes = self.speculative_peak_bytes.max(self.speculative_bytes);
        }
        if let Side::Held(instance, _) = from
            && emptied
            && self.rows.get(&instance).is_some_and(|row| row.iter().all(|b| *b == 0))
        {
            self.rows.remove(&instance);
        }
    }

    fn side(&mut self, side: Side) -> &mut u64 {
        match side {
            Side::Free => &mut self.free_bytes,
            Side::Held(instance, account) => &mut self.rows.entry(instance).or_default()[account as usize],
        }
    }

    /// The global limit.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes nobody owns.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes owned by all queries.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.budget_bytes - self.free_bytes
    }

    /// The most that was ever reserved at once.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// The most that was ever speculative at once.
    #[must_use]
    pub fn speculative_peak_bytes(&self) -> u64 {
        self.speculative_peak_bytes
    }

    /// Bytes of all instances in one account.
    #[must_use]
    pub fn account_bytes(&self, account: Account) -> u64 {
        self.rows.values().map(|row| row[account as usize]).sum()
    }

    /// Bytes of one instance in all accounts.
    #[must_use]
    pub fn instance_bytes(&self, instance: InstanceId) -> u64 {
        self.rows.get(&instance).map_or(0, |row| row.iter().sum())
    }

    /// Bytes of one instance in one account.
    #[must_use]
    pub fn held_bytes(&self, instance: InstanceId, account: Account) -> u64 {
        self.rows.get(&instance).map_or(0, |row| row[account as usize])
    }

    /// Speculative bytes of one instance.
    #[must_use]
    pub fn instance_speculative_bytes(&self, instance: InstanceId) -> u64 {
        Account::ALL.iter().filter(|a| a.speculative()).map(|a| self.held_bytes(instance, *a)).sum()
    }

    /// Speculative bytes of all instances.
    #[must_use]
    pub fn speculative_bytes(&self) -> u64 {
        self.speculative_bytes
    }

    /// Whether the books add up.
    pub(crate) fn balanced(&self) -> bool {
        let held: u64 = self.rows.values().flatten().sum();
        let speculative: u64 =
            Account::ALL.iter().filter(|a| a.speculative()).map(|a| self.account_bytes(*a)).sum();
        held + self.free_bytes == self.budget_bytes && speculative == self.speculative_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_keep_the_sum() {
        let mut ledger = Ledger::new(100);
        let (a, b) = (InstanceId(1), InstanceId(2));
        ledger.transfer(Side::Free, Side::Held(a, Account::Ready), 40);
        ledger.transfer(Side::Free, Side::Held(b, Account::Prepared), 25);
        ledger.transfer(Side::Held(a, Account::Ready), Side::Held(a, Account::Restoring), 40);
        assert!(ledger.balanced());
        assert_eq!((ledger.reserved_bytes(), ledger.free_bytes()), (65, 35));
        assert_eq!((ledger.instance_bytes(a), ledger.speculative_bytes()), (40, 25));
        ledger.transfer(Side::Held(b, Account::Prepared), Side::Held(b, Account::Ready), 10);
        ledger.transfer(Side::Free, Side::Held(a, Account::Warming), 5);
        assert_eq!((ledger.speculative_bytes(), ledger.speculative_peak_bytes()), (20, 25));
        ledger.transfer(Side::Held(a, Account::Warming), Side::Free, 5);
        ledger.transfer(Side::Held(a, Account::Restoring), Side::Free, 40);
        assert!(ledger.balanced());
        assert_eq!((ledger.account_bytes(Account::Restoring), ledger.peak_bytes()), (0, 70));
    }

    #[test]
    #[should_panic(expected = "holds 10 bytes, not 11")]
    fn more_than_is_there_cannot_move() {
        let mut ledger = Ledger::new(10);
        ledger.transfer(Side::Free, Side::Held(InstanceId(1), Account::Ready), 11);
    }
}
