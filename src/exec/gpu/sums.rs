//! Collective calls of GPUs with NCCL or, if NCCL cannot be used, with [`copies`](super::copies). NCCL rejects two ranks on one
//! GPU, so slices and ranks that share a GPU use copies.

use super::super::shared::Shared;
use super::communicators::{self, Name, Purpose, SharedCommunicator, check, ids, lock};
use super::copies;
use anyhow::{Context as _, Result, ensure};
use pipesim_gpu::nccl::{Error, Nccl, UniqueId};
use pipesim_gpu::{Address, Communicator, Gpu};
use pipesim_train::compute::cuda::{AloneOnDevice, DeviceCollective, Fold, Join, Numbers, share};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// A member of a group that uses NCCL.
pub struct ByNccl {
    worker: u32,
    gpu: Arc<Gpu>,
    shared: Arc<Shared>,
    library: Nccl,
    name: Name,
    id: UniqueId,
    /// Joined at the first step, when all members run at the same time.
    communicator: Arc<OnceLock<SharedCommunicator>>,
}

impl ByNccl {
    fn joined(&self) -> Result<&SharedCommunicator> {
        self.communicator.get().context("expected a communicator that was joined when the step began, found none")
    }

    /// Enqueues a call for each array, as one group.
    fn each(&self, data: &[Numbers], call: impl Fn(&Communicator, Numbers) -> Result<(), Error>) -> Result<()> {
        let channel = lock(self.joined()?);
        let all = || data.iter().try_for_each(|&numbers| call(&channel, numbers));
        Ok(if data.len() == 1 { all() } else { self.library.group(all) }?)
    }
}

impl DeviceCollective for ByNccl {
    fn size(&self) -> usize {
        self.name.members.len()
    }

    fn rank(&self) -> usize {
        self.name.rank(self.worker).unwrap_or_default() as usize
    }

    fn begin(&mut self) -> Result<()> {
        if self.communicator.get().is_none() {
            let ByNccl { library, shared, worker, gpu, name, id, .. } = self;
            let joined = communicators::join(library, shared, *worker, gpu, name, *id)?;
            let _ = self.communicator.set(joined); // set only here
        }
        Ok(())
    }

    fn all_reduce(&mut self, data: &[Numbers], join: Join, _fold: &Fold<'_>) -> Result<()> {
        self.each(data, |channel, numbers| channel.all_reduce(numbers, join, &self.gpu.compute))
    }

    fn reduce_scatter(&mut self, data: Numbers, share: Address, _fold: &Fold<'_>) -> Result<()> {
        Ok(lock(self.joined()?).reduce_scatter(data, share, &self.gpu.compute)?)
    }

    fn all_gather(&mut self, share: Numbers, data: Address) -> Result<()> {
        Ok(lock(self.joined()?).all_gather(share, data, &self.gpu.compute)?)
    }

    fn reduce_scatter_in_place(&mut self, data: &[Numbers], _fold: &Fold<'_>) -> Result<()> {
        let own = |numbers| share(numbers, self.rank(), self.size()).address;
        self.each(data, |channel, numbers| channel.reduce_scatter(numbers, own(numbers), &self.gpu.compute))
    }

    fn all_gather_in_place(&mut self, data: &[Numbers]) -> Result<()> {
        let own = |numbers| share(numbers, self.rank(), self.size());
        self.each(data, |channel, numbers| channel.all_gather(own(numbers), numbers.address, &self.gpu.compute))
    }
}

/// The groups of a worker.
pub struct WorkerSums {
    /// Group of the tensor-parallel ranks that share its layers; the module takes it.
    pub tensor: Box<dyn DeviceCollective>,
    /// By number of group: the workers that hold the same stages.
    pub data: BTreeMap<usize, Box<dyn DeviceCollective>>,
    pub guard: SumsGuard,
}

/// Watches the communicators of a worker's groups.
#[derive(Default)]
pub struct SumsGuard(Vec<Arc<OnceLock<SharedCommunicator>>>);

impl SumsGuard {
    fn joined(&self) -> impl Iterator<Item = &SharedCommunicator> {
        self.0.iter().filter_map(|communicator| communicator.get())
    }

    /// Checks whether enqueued calls have failed: see [`communicators::check`].
    pub fn check(&self, shared: &Shared) -> Result<()> {
        self.joined().try_for_each(|communicator| check(shared, communicator))
    }

    /// Aborts everything enqueued.
    pub fn abort(&self) {
        self.joined().for_each(|communicator| lock(communicator).abort());
    }
}

/// Creates members of groups.
enum Maker {
    Nccl {
        library: Nccl,
        /// By number of group.
        names: Vec<Name>,
        ids: BTreeMap<Name, UniqueId>,
    },
    Copies(copies::Ends),
}

impl Maker {
    /// All ranks must call this together.
    fn nccl(library: Nccl, shared: &Shared) -> Result<Maker> {
        let world = shared.workers();
        let name = |members: &Vec<u32>| Name { purpose: Purpose::Sums, members: members.clone(), world };
        let names: Vec<Name> = shared.groups.all().iter().map(|group| name(&group.members)).collect();
        let ids = ids(&library, shared, names.iter().cloned().collect())?;
        Ok(Maker::Nccl { library, names, ids })
    }

    /// Creates the member of group `number` for `worker`. It can be called once.
    fn make(
        &mut self,
        worker: u32,
        gpu: &Arc<Gpu>,
        number: usize,
        shared: &Arc<Shared>,
        guard: &mut SumsGuard,
    ) -> Result<Box<dyn DeviceCollective>> {
        Ok(match self {
            Maker::Nccl { library, names, ids } => {
                let (name, communicator) = (names[number].clone(), Arc::new(OnceLock::new()));
                guard.0.push(communicator.clone());
                let id = *ids.get(&name).context("an id of every communicator")?;
                let (gpu, shared, library) = (gpu.clone(), shared.clone(), library.clone());
                Box::new(ByNccl { worker, gpu, shared, library, name, id, communicator })
            }
            Maker::Copies(ends) => Box::new(ends.remove(&(worker, number)).context("an end of every group")?),
        })
    }
}

/// What ranks tell each other about their GPUs.
#[derive(Serialize, Deserialize)]
struct Told {
    /// By worker: the machine and the GPU on it.
    gpus: Vec<(u32, String)>,
    has_nccl: bool,
}

/// Returns the groups of this process's workers, each on its GPU. All ranks must call this together.
///
/// # Errors
/// Neither NCCL nor copies can be used.
pub fn sums(gpus: &BTreeMap<u32, Arc<Gpu>>, shared: &Arc<Shared>) -> Result<BTreeMap<u32, WorkerSums>> {
    let groups = &shared.groups;
    let alone = |&worker: &u32| {
        let (tensor, data, guard) = (Box::new(AloneOnDevice), BTreeMap::new(), SumsGuard::default());
        (worker, WorkerSums { tensor, data, guard })
    };
    let mut all: BTreeMap<u32, WorkerSums> = gpus.keys().map(alone).collect();
    if groups.all().is_empty() {
        return Ok(all);
    }
    let mut maker = match usable_nccl(gpus, shared)? {
        Some(library) => Maker::nccl(library, shared)?,
        None => Maker::Copies(copies::ends(gpus, shared)?),
    };
    for (&worker, gpu) in gpus {
        let Some(sums) = all.get_mut(&worker) else { continue };
        if let Some(number) = groups.of_tensor(worker) {
            sums.tensor = maker.make(worker, gpu, number, shared, &mut sums.guard)?;
        }
        for number in groups.of_gradients(worker) {
            sums.data.insert(number, maker.make(worker, gpu, number, shared, &mut sums.guard)?);
        }
    }
    Ok(all)
}

/// Returns NCCL if all groups can use it: every rank has it, and no two members of a group share a GPU. All ranks must call this
/// together.
fn usable_nccl(gpus: &BTreeMap<u32, Arc<Gpu>>, shared: &Shared) -> Result<Option<Nccl>> {
    let library = Nccl::open();
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let place = |(&worker, gpu): (&u32, &Arc<Gpu>)| (worker, format!("{} {}", machine.trim(), gpu.facts().pci));
    let told = Told { gpus: gpus.iter().map(place).collect(), has_nccl: library.is_ok() };
    let told = shared.ranks.exchange(serde_json::to_vec(&told)?)?;
    let told = told.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<Vec<Told>, _>>()?;
    let places: BTreeMap<u32, &str> =
        told.iter().flat_map(|told| &told.gpus).map(|(worker, place)| (*worker, place.as_str())).collect();
    let is_apart = |members: &[u32]| {
        let distinct: BTreeSet<_> = members.iter().map(|member| places.get(member)).collect();
        distinct.len() == members.len()
    };
    let have_own = shared.groups.all().iter().all(|group| is_apart(&group.members));
    let have_nccl = told.iter().all(|told| told.has_nccl);
    if have_own && have_nccl {
        return Ok(library.ok());
    }
    let lack = if have_own { "NCCL is missing at a rank" } else { "some share a GPU, which NCCL rejects" };
    ensure!(
        shared.ranks.share_memory(),
        "expected workers of `tp` and `dp` on several machines to have NCCL and a GPU each, found that {lack}: install \
         nvidia-nccl-cu13, and leave `gpu-slices` out"
    );
    Ok(None)
}
