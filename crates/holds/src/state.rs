//! What is held and what is switched, for the whole process.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most held points, switches or callbacks of one kind: a test that needs more has a bug.
const MAX_ENTRIES: usize = 256;

/// How often a waiter looks at its own condition.
const RECHECK: Duration = Duration::from_millis(2);

type Callback = Box<dyn Fn() + Send>;

#[derive(Default)]
struct State {
    /// Held points and how often each was reached since.
    held: BTreeMap<String, u64>,
    switches: BTreeMap<String, String>,
    callbacks: Vec<(String, Callback)>,
}

static STATE: Mutex<State> =
    Mutex::new(State { held: BTreeMap::new(), switches: BTreeMap::new(), callbacks: Vec::new() });
static RELEASED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    // A panicking test thread must not take the others with it.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a point and sets its count to zero. False when too many points are held.
pub fn hold(name: &str) -> bool {
    let mut state = state();
    if state.held.len() >= MAX_ENTRIES && !state.held.contains_key(name) {
        return false;
    }
    state.held.insert(name.to_owned(), 0);
    true
}

/// Lets everybody at that point go and runs its callbacks, on this thread.
pub fn release(name: &str) {
    let mut state = state();
    state.held.remove(name);
    RELEASED.notify_all();
    // Run under the lock: a callback that is replaced meanwhile cannot be missed. They must be short.
    for (_, callback) in state.callbacks.iter().filter(|(n, _)| n == name) {
        callback();
    }
}

/// Whether that point is held.
#[must_use]
pub fn is_held(name: &str) -> bool {
    state().held.contains_key(name)
}

/// Counts one arrival at a held point, for code that queues instead of waiting.
pub fn note_reached(name: &str) {
    if let Some(count) = state().held.get_mut(name) {
        *count += 1;
    }
}

/// Arrivals since the point was held; zero for a point that is not.
#[must_use]
pub fn reached(name: &str) -> u64 {
    state().held.get(name).copied().unwrap_or(0)
}

/// Stops here while the point is held.
pub fn wait_if_held(name: &str) {
    wait_if_held_or(name, &|| false);
}

/// Stops here while the point is held and `stop` says no. `stop` is asked every 2 ms, without a lock.
pub fn wait_if_held_or(name: &str, stop: &dyn Fn() -> bool) {
    note_reached(name);
    while is_held(name) && !stop() {
        let state = state();
        if state.held.contains_key(name) {
            drop(RELEASED.wait_timeout(state, RECHECK));
        }
    }
}

/// Calls `callback` at every release of that point. It must be short and call nothing of this crate.
/// False when too many are registered.
pub fn on_release(name: &str, callback: impl Fn() + Send + 'static) -> bool {
    let mut state = state();
    if state.callbacks.len() >= MAX_ENTRIES {
        return false;
    }
    state.callbacks.push((name.to_owned(), Box::new(callback)));
    true
}

/// Value of a switch.
#[must_use]
pub fn switch(key: &str) -> Option<String> {
    state().switches.get(key).cloned()
}

/// Sets a switch, or removes it. False when too many are set.
pub fn set_switch(key: &str, value: Option<&str>) -> bool {
    let mut state = state();
    match value {
        None => drop(state.switches.remove(key)),
        Some(_) if state.switches.len() >= MAX_ENTRIES && !state.switches.contains_key(key) => {
            return false;
        }
        Some(value) => drop(state.switches.insert(key.to_owned(), value.to_owned())),
    }
    true
}

/// Counts a numeric switch down; true once, when it reaches zero, and the switch is gone then.
#[must_use]
pub fn count_down(key: &str) -> bool {
    let mut state = state();
    let Some(left) = state.switches.get(key).and_then(|v| v.parse::<u64>().ok()) else {
        return false;
    };
    if left <= 1 {
        state.switches.remove(key);
        return true;
    }
    state.switches.insert(key.to_owned(), (left - 1).to_string());
    false
}

/// Everything held and switched, as one line.
pub(crate) fn list() -> String {
    let state = state();
    let held = state.held.iter().map(|(name, count)| format!("hold:{name}={count}"));
    let switches = state.switches.iter().map(|(key, value)| format!("switch:{key}={value}"));
    held.chain(switches).collect::<Vec<_>>().join(" ")
}
