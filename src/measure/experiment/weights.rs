//! One set of weights for several sessions on CPUs, which use it in turn.
//!
//! Between turns no session holds parameters: their memory is in a [`WeightPool`], with what each trajectory of the training needs to go
//! on. Runs that compute the same bits share a trajectory: each of them trains a step from its state, and the last one of the
//! round moves the state on.

use super::Error;
use pipesim_exec::{Session, State};
use pipesim_train::model::{Cpu, Group, GroupState, StageModule, TensorPart};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a group of tensors is known by: the tensor rank that holds it, the elements whose moments it has, and its first tensor.
type Key = (u32, [usize; 2], TensorPart);

/// Groups of tensors. Workers that hold the same one have a group each.
type Groups = BTreeMap<Key, Vec<Group>>;

/// The weights of a model, for the sessions of this rank.
#[derive(Default)]
pub struct WeightPool {
    free: Groups,
    /// What the session whose turn ends gave back.
    returned: Groups,
    /// By trajectory.
    saved: Vec<BTreeMap<Key, Saved>>,
}

/// The state of a group in a trajectory.
struct Saved {
    state: Arc<Mutex<GroupState>>,
    /// The runs that train it here, and those that have done so in this round.
    runs: BTreeSet<usize>,
    done: BTreeSet<usize>,
}

/// A run's part in a pool.
pub struct Borrower {
    pub pool: Arc<Mutex<WeightPool>>,
    /// Number of the run.
    pub run: usize,
    pub trajectory: usize,
    /// Whether its steps move the trajectory on; otherwise they only measure times.
    pub trains: bool,
}

impl Borrower {
    /// Hands the weights of a session that was just opened over to the pool.
    pub fn join(&self, session: &mut Session) -> Result<(), Error> {
        self.lend(session)?;
        let mut pool = locked(&self.pool);
        let returned = std::mem::take(&mut pool.returned);
        for (key, groups) in returned {
            pool.adopt(self, key, groups);
        }
        Ok(())
    }

    /// Gives a session the weights of its trajectory.
    pub fn borrow(&self, session: &mut Session) -> Result<(), Error> {
        let (pool, trajectory, mesh) = (self.pool.clone(), self.trajectory, session.mesh());
        session.call(move |worker, state| {
            let Some(module) = module(state) else { return Ok(()) };
            let rank = mesh.coordinate(worker).tensor;
            let take = |(part, slice)| {
                let (mut group, state) = locked(&pool).take(trajectory, (rank, slice, part))?;
                group.load(&locked(&state));
                Ok(group)
            };
            let groups = module.group_keys().into_iter().map(take).collect::<anyhow::Result<_>>()?;
            module.take_groups(groups);
            Ok(())
        })?;
        Ok(())
    }

    /// Takes the weights back. With `trained`, the session has done its step of this round.
    pub fn give_back(&self, session: &mut Session, trained: bool) -> Result<(), Error> {
        self.lend(session)?;
        locked(&self.pool).settle(self, trained && self.trains);
        Ok(())
    }

    fn lend(&self, session: &mut Session) -> Result<(), Error> {
        let (pool, mesh) = (self.pool.clone(), session.mesh());
        session.call(move |worker, state| {
            let rank = mesh.coordinate(worker).tensor;
            let groups = module(state).map(StageModule::lend_groups).unwrap_or_default();
            let mut pool = locked(&pool);
            for (part, slice, group) in groups {
                pool.returned.entry((rank, slice, part)).or_default().push(group);
            }
            Ok(())
        })?;
        Ok(())
    }
}

impl WeightPool {
    /// Keeps as many groups as the largest session needs at a time, and the initial state of each trajectory.
    fn adopt(&mut self, of: &Borrower, key: Key, groups: Vec<Group>) {
        self.saved.resize_with(self.saved.len().max(of.trajectory + 1), BTreeMap::new);
        let saved = self.saved[of.trajectory].entry(key).or_insert_with(|| Saved {
            state: Arc::new(Mutex::new(groups.first().map_or_else(GroupState::default, Group::state))),
            runs: BTreeSet::new(),
            done: BTreeSet::new(),
        });
        saved.runs.extend(of.trains.then_some(of.run));
        let free = self.free.entry(key).or_default();
        free.extend(groups.into_iter().skip(free.len()));
    }

    fn take(&mut self, trajectory: usize, key: Key) -> anyhow::Result<(Group, Arc<Mutex<GroupState>>)> {
        let state = self.saved.get(trajectory).and_then(|saved| saved.get(&key)).map(|saved| saved.state.clone());
        let group = self.free.get_mut(&key).and_then(Vec::pop);
        group.zip(state).ok_or_else(|| anyhow::anyhow!("expected weights that no other session uses, found none"))
    }

    /// Ends the turn of a run. The last run of a trajectory in a round leaves its state there.
    fn settle(&mut self, of: &Borrower, trained: bool) {
        for (key, mut groups) in std::mem::take(&mut self.returned) {
            if let (true, Some(saved)) = (trained, self.saved[of.trajectory].get_mut(&key)) {
                saved.done.insert(of.run);
                if let (true, Some(group)) = (saved.done == saved.runs, groups.first_mut()) {
                    group.swap(&mut locked(&saved.state));
                    saved.done.clear();
                }
            }
            self.free.entry(key).or_default().append(&mut groups);
        }
    }
}

/// A device's part of the model.
fn module(state: &mut dyn State) -> Option<&mut StageModule<Cpu>> {
    state.as_any()?.downcast_mut()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
