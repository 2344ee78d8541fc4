//! Which GPU, or slice of one, each device of a run gets.

use crate::cuda::{Driver, Gpu, enable_peers};
use crate::ranks::Ranks;
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The GPU's number and the slice's, for each device of this rank.
///
/// A machine's devices take its GPUs in order, `slices` devices a GPU. Where a rank sees only the GPUs that are its own, as
/// launchers may arrange, it counts by itself.
///
/// # Errors
/// More devices than GPUs and slices.
pub fn places(ranks: &Ranks, devices: u32, slices: Option<u32>, visible: u32) -> Result<Vec<(u32, u32)>> {
    let each = slices.unwrap_or(1);
    let (here, own) = (ranks.devices_here(devices), ranks.devices(devices));
    let room = u64::from(visible) * u64::from(each);
    let alone = ranks.under_mpi() && here.len() as u64 > room;
    let among = if alone { own.clone().collect() } else { here };
    ensure!(
        among.len() as u64 <= room,
        "expected at most {room} devices on {visible} visible GPUs{}, found {}: ask for fewer --stages, for --slices, or use \
         --device cpu",
        slices.map_or(String::new(), |n| format!(" with --slices {n}")),
        among.len()
    );
    let place = |device: u32| {
        let index = among.iter().position(|&other| other == device).unwrap_or(0) as u32;
        (index / each, index % each)
    };
    Ok(own.map(place).collect())
}

/// The GPUs of this rank's devices. In one process slices are green contexts, each with its own multiprocessors; ranks that share
/// a GPU take turns on the whole of it.
///
/// # Errors
/// No such GPUs, too many slices, GPUs that are too old.
pub fn open(ranks: &Ranks, devices: u32, slices: Option<u32>, driver: &'static Driver) -> Result<Vec<Arc<Gpu>>> {
    let places = places(ranks, devices, slices, driver.devices())?;
    let mut sliced: BTreeMap<u32, Vec<Option<Arc<Gpu>>>> = BTreeMap::new();
    let mut gpus = Vec::new();
    for (ordinal, slice) in places {
        match slices.filter(|_| ranks.size() == 1) {
            None => gpus.push(Arc::new(Gpu::whole(driver, ordinal)?)),
            Some(count) => {
                if let std::collections::btree_map::Entry::Vacant(place) = sliced.entry(ordinal) {
                    place.insert(
                        Gpu::slices(driver, ordinal, count)?.into_iter().map(|gpu| Some(Arc::new(gpu))).collect(),
                    );
                }
                let all = sliced.get_mut(&ordinal).and_then(|all| all.get_mut(slice as usize));
                gpus.extend(all.and_then(Option::take));
            }
        }
    }
    enable_peers(driver, &gpus.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_a_device_or_several() {
        let ranks = Ranks::alone();
        assert_eq!(places(&ranks, 2, None, 4).unwrap(), [(0, 0), (1, 0)]);
        assert_eq!(places(&ranks, 4, Some(2), 2).unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert!(places(&ranks, 4, None, 2).unwrap_err().to_string().contains("at most 2 devices"));
        assert!(places(&ranks, 3, Some(2), 1).is_err());
    }
}
