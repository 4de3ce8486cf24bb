//! Live operations of one client and the cells that hold their answers.

mod busy;
mod cell;
mod counters;
mod demand;
mod preparation;
mod recovery;
mod reservation;
mod saves;
mod speculation;
mod table;

pub(crate) use cell::{Lease, QueryCell, ResetCell};
pub use cell::{MissReason, QueryState};
pub use demand::Demand;
pub(crate) use preparation::PreparationCell;
pub use preparation::PreparationState;
pub use recovery::RecoveryDemand;
pub(crate) use recovery::{CandidatesCell, Wants};
pub(crate) use reservation::{Grants, ReservationCell};
pub(crate) use saves::REQUEST_PAGES;
pub(crate) use table::Operations;
