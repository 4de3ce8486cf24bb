//! Hold points and fault switches, driven by a test from outside the process.
//!
//! A *hold point* is a named place where code stops while a test holds it, so that a race becomes a
//! sequence. A *switch* is a named value that makes code misbehave on purpose. Both are reached over
//! `$ORBITKV_TEST_DIR/<pid>.sock`, one line a request and one line an answer:
//!
//! | Request         | Effect                                              | Answer            |
//! |-----------------|-----------------------------------------------------|-------------------|
//! | `hold NAME`     | the point stops whoever reaches it; its count is 0  | `ok`              |
//! | `release NAME`  | lets everybody go                                   | `ok`              |
//! | `reached NAME`  | –                                                   | times while held  |
//! | `set KEY VALUE` | sets a switch; without VALUE it is removed          | `ok`              |
//! | `list`          | –                                                   | `hold:N=reached switch:K=V …` |
//!
//! Anything else is answered `error: …`. The crate is compiled in only by the feature `test-hooks`
//! of its users, and does nothing unless `ORBITKV_TEST_DIR` is set.
#![forbid(unsafe_code)]

mod listener;
mod state;

pub use listener::start_from_env;
pub use state::{
    count_down, hold, is_held, note_reached, on_release, reached, release, set_switch, switch, wait_if_held,
    wait_if_held_or,
};
