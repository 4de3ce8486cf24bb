//! Which device takes a page.

use super::device::Device;
use orbitkv_core::StoredName;

/// Shards that a device may have to write more than another before that one takes its pages: one that has become slow
/// must not hold all that may be under way at once.
const LEAD: usize = 16;

/// The device that the name says, if it takes its share; else another that does. `None` if none can be written.
///
/// The same name mostly comes to the same device, which then has one place for it. Where it does not, both places have
/// that page's bytes, and a start that finds both keeps one.
pub(super) fn choose(devices: &[Device], name: &StoredName) -> Option<usize> {
    let writable = || devices.iter().enumerate().filter(|(_, device)| device.is_writable());
    let (idlest, least) = writable().map(|(at, device)| (at, device.writing)).min_by_key(|(_, n)| *n)?;
    let keeps_up =
        |at: &usize| devices.get(*at).is_some_and(|d| d.is_writable() && d.writing <= least + LEAD);
    let own = device_of(name, devices.len());
    if keeps_up(&own) {
        return Some(own);
    }
    let others: Vec<usize> = writable().map(|(at, _)| at).filter(|at| *at != own).collect();
    others.get(device_of(name, others.len())).copied().filter(keeps_up).or(Some(idlest))
}

/// Which of so many is that of a name.
pub(super) fn device_of(name: &StoredName, devices: usize) -> usize {
    // Hashes need not be spread evenly: engines choose them.
    let mixed = name.hash.0.iter().fold(u64::from(name.shard.0), |mixed, byte| {
        (mixed ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let folded = mixed ^ (mixed >> 32);
    usize::try_from(folded % devices.max(1) as u64).unwrap_or(0)
}
