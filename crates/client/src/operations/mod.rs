//! Live operations of one client and the cells that hold their answers.

mod cell;
mod reservation;
mod table;

pub(crate) use cell::{Lease, QueryCell, ResetCell};
pub use cell::{MissReason, QueryState};
pub(crate) use reservation::{Grants, ReservationCell};
pub(crate) use table::Operations;
