//! The switch `ssd_fault`, which makes the disk of a directory misbehave: `NAME DIRECTION FAULT [COUNT]`.
//!
//! NAME is the last part of the directory's path; DIRECTION is `read` or `write`; FAULT is `eio`, `short`, `enospc`,
//! `erofs`, `slow=MS` or `stuck`; without COUNT all requests are hit. Whoever was held back is let go when the switch
//! changes. Several of them are separated by semicolons. Anything that cannot be read so is no fault.

use orbitkv_store::Direction;
use orbitkv_uring::PageDisk;
use orbitkv_uring::faults::{DiskFault, Fault, FaultDisk, FaultPlan, FaultSource, Planned};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

const SWITCH: &str = "ssd_fault";

pub(crate) type FaultyDisk = FaultDisk<PageDisk, Switch>;

/// That disk, as the switch says.
pub(super) fn faulty(disk: PageDisk, path: &Path) -> FaultyDisk {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    FaultDisk::with_source(disk, Switch { name: name.unwrap_or_default(), seen: Mutex::default() })
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Switch {
    name: String,
    seen: Mutex<Seen>,
}

/// The switch as it was last, and what it means.
#[derive(Debug, Default)]
struct Seen {
    text: Option<String>,
    plan: FaultPlan,
}

impl Switch {
    fn plan(&self) -> FaultPlan {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let text = orbitkv_holds::switch(SWITCH);
        if seen.text != text {
            let entries = text.as_deref().unwrap_or_default().split(';');
            seen.plan.set(entries.filter_map(|entry| planned(&self.name, entry)).collect());
            seen.plan.release();
            seen.text = text;
        }
        seen.plan.clone()
    }
}

impl FaultSource for Switch {
    fn next(&mut self, direction: Direction) -> Option<Fault> {
        self.plan().next(direction)
    }

    fn releases(&self) -> u64 {
        self.plan().releases()
    }
}

fn planned(name: &str, entry: &str) -> Option<Planned> {
    let mut words = entry.split_whitespace();
    words.next().filter(|word| *word == name)?;
    let direction = match words.next()? {
        "read" => Direction::Read,
        "write" => Direction::Write,
        _ => return None,
    };
    let fault = match words.next()? {
        "eio" => Fault::Error(DiskFault::Io),
        "short" => Fault::Error(DiskFault::Short),
        "enospc" => Fault::Error(DiskFault::NoSpace),
        "erofs" => Fault::Error(DiskFault::ReadOnly),
        "stuck" => Fault::Stuck,
        slow => Fault::Slow(Duration::from_millis(slow.strip_prefix("slow=")?.parse().ok()?)),
    };
    let count = words.next().map_or(Some(u64::MAX), |count| count.parse().ok())?;
    Some(Planned { direction, after: 0, count, fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_from_its_words() {
        let of =
            |entry| planned("ssd", entry).map(|planned| (planned.direction, planned.fault, planned.count));
        assert_eq!(of("ssd read eio 3"), Some((Direction::Read, Fault::Error(DiskFault::Io), 3)));
        assert_eq!(of(" ssd write stuck"), Some((Direction::Write, Fault::Stuck, u64::MAX)));
        let slow = Fault::Slow(Duration::from_millis(20));
        assert_eq!(of("ssd read slow=20"), Some((Direction::Read, slow, u64::MAX)));
        for none in ["", "other read eio", "ssd eio", "ssd read slowly", "ssd read eio many"] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
