//! Says once whether the engine uses the cache.

use crate::engine::Engine;
use crate::say;
use crate::status::{self, Instance};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(500);
/// An engine attaches before it serves. One that serves and is not active after this stays so.
const AFTER_HEALTH: Duration = Duration::from_secs(10);
/// Large models take minutes to load; after this nobody reads the line any more.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The instances of the manager before the engine began: a new one is the engine's.
pub(crate) struct Watch {
    http: SocketAddr,
    engine: Engine,
    address: String,
    before: HashSet<String>,
}

impl Watch {
    /// `address` is host and port at which the engine will answer `/health`.
    pub(crate) fn prepare(http: SocketAddr, engine: Engine, address: String) -> Option<Self> {
        let before = status::fetch(http).ok()?.instances.into_iter().map(|row| row.instance).collect();
        Some(Self { http, engine, address, before })
    }

    /// Looks until there is something to say, on a thread that ends with the process.
    pub(crate) fn start(self) {
        let look = move || {
            if let Some(line) = self.look() {
                say::line(&line);
            }
        };
        if let Err(error) = thread::Builder::new().name("orbitkv-watch".to_owned()).spawn(look) {
            say::line(&format!("OrbitKV: nobody watches whether the cache becomes active: {error}"));
        }
    }

    fn look(&self) -> Option<String> {
        let begun = Instant::now();
        let mut healthy_since = None;
        while begun.elapsed() < PATIENCE {
            let instance = self.instance();
            if instance.as_ref().is_some_and(|instance| instance.active) {
                return Some("OrbitKV: active (self-test passed)".to_owned());
            }
            if healthy_since.is_none() && status::is_healthy(&self.address) {
                healthy_since = Some(Instant::now());
            }
            if healthy_since.is_some_and(|since| since.elapsed() > AFTER_HEALTH) {
                return Some(not_active(self.engine, instance.as_ref()));
            }
            thread::sleep(POLL);
        }
        None
    }

    fn instance(&self) -> Option<Instance> {
        let report = status::fetch(self.http).ok()?;
        report.instances.into_iter().find(|row| !self.before.contains(&row.instance))
    }
}

fn not_active(engine: Engine, instance: Option<&Instance>) -> String {
    let why = match instance {
        None => "it has not connected to the cache manager".to_owned(),
        Some(instance) if (instance.ranks_attested.len() as u64) < instance.world_size => {
            let passed = instance.ranks_attested.len();
            format!("the self-test passed on {passed} of {} ranks", instance.world_size)
        }
        Some(_) => "not all of its ranks are connected".to_owned(),
    };
    let look = match engine {
        Engine::Vllm => "its log lines with \"OrbitKV\" say more",
        // A plugin that cannot be imported is only logged, and then nobody is there to say more.
        Engine::Sglang => {
            "its log lines with \"OrbitKV\" say more; without any, \
             \"Tree cache initialized: source=registered('orbitkv')\" must be there"
        }
    };
    format!("OrbitKV: not active, the engine serves without the cache: {why}; {look}")
}
