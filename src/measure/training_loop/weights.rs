//! Moving a model between the devices of a session, on all ranks, and the host's memory.

use crate::experiment::Error;
use pipesim_exec::Session;
use pipesim_exec::ranks::Ranks;
use pipesim_train::checkpoint::Checkpoint;
use pipesim_train::model::{Parameters, Quantity, TensorPart};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest message of a rank to rank 0, in float32 numbers: 4 MiB.
const MOST_PER_MESSAGE: usize = 1 << 20;

/// Elements of a tensor, by its number.
type Elements = (usize, Range<usize>);

/// Memory for all parameters of a model, or for something else of their shapes. A rank other than 0 uses only the part of its
/// devices; the rest is never touched and takes no memory.
pub struct HostCopy {
    parameters: Arc<Mutex<Parameters>>,
    /// The tensors of this rank's devices.
    held: BTreeSet<TensorPart>,
    /// By rank: its messages to rank 0, which contain the tensors that no lower rank has; all of its tensors if ranks have parts of
    /// the same tensor.
    messages: Vec<Vec<Vec<Elements>>>,
    /// Whether several ranks have parts of the same tensor: shares of tensor-parallel ranks, or of the optimizer's state.
    has_parts: bool,
}

impl HostCopy {
    /// Makes room for the model of `session`, in the memory of `parameters` on rank 0. All ranks must call this together.
    ///
    /// # Errors
    /// A device or a rank fails.
    pub fn new(parameters: Parameters, session: &mut Session) -> Result<HostCopy, Error> {
        let held: Arc<Mutex<BTreeSet<TensorPart>>> = Arc::default();
        let into = held.clone();
        session.call(move |_, state| {
            locked(&into).extend(state.tensors());
            Ok(())
        })?;
        let held = std::mem::take(&mut *locked(&held));
        let (ranks, mesh) = (session.ranks(), session.mesh());
        let world = mesh.world(session.graph().schedule().devices());
        let splits = |rank| !ranks.devices_of(rank, world).start.is_multiple_of(mesh.tensor);
        let has_parts = ranks.size() > 1 && (mesh.zero || (0..ranks.size()).any(splits));
        let text = serde_json::to_vec(&held).map_err(anyhow::Error::from)?;
        let mut known = BTreeSet::new();
        let mut messages = Vec::new();
        for text in ranks.exchange(text)? {
            let of_rank: Vec<TensorPart> = serde_json::from_slice(&text).map_err(anyhow::Error::from)?;
            messages.push(packed(of_rank.into_iter().filter(|part| known.insert(*part) || has_parts), &parameters));
        }
        let config = parameters.config;
        let parameters = if ranks.rank() == 0 { parameters } else { Parameters::zeros(&config)? };
        Ok(HostCopy { parameters: Arc::new(Mutex::new(parameters)), held, messages, has_parts })
    }

    /// Copies a quantity from the devices of all ranks: of all parameters on rank 0, of its own on the others. All ranks must call
    /// this together.
    ///
    /// # Errors
    /// A device or a rank fails.
    pub fn export(&self, session: &mut Session, what: Quantity) -> Result<MutexGuard<'_, Parameters>, Error> {
        if self.has_parts {
            self.clear(session.ranks());
        }
        let into = self.parameters.clone();
        session.call(move |_, state| state.export(&mut locked(&into), what))?;
        let mut parameters = locked(&self.parameters);
        self.gather(session.ranks(), &mut parameters)?;
        Ok(parameters)
    }

    /// Sets the elements that this rank fills or gathers to zero.
    fn clear(&self, ranks: &Ranks) {
        let mut copy = locked(&self.parameters);
        if ranks.rank() == 0 {
            copy.tensors.iter_mut().for_each(|tensor| tensor.fill(0.0));
            return;
        }
        let held: Vec<Elements> = self.held.iter().map(|part| elements(*part, &copy)).collect();
        held.into_iter().for_each(|(tensor, range)| copy.tensors[tensor][range].fill(0.0));
    }

    /// Completes rank 0's copy with the copies of the other ranks.
    fn gather(&self, ranks: &Ranks, parameters: &mut Parameters) -> Result<(), Error> {
        let rounds = self.messages.iter().skip(1).map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            let own = self.messages[ranks.rank() as usize].get(round).filter(|_| ranks.rank() > 0);
            let mut bytes = Vec::new();
            for (tensor, range) in own.into_iter().flatten() {
                bytes.extend_from_slice(bytemuck::cast_slice(&parameters.tensors[*tensor][range.clone()]));
            }
            let found = ranks.gather(bytes)?;
            if ranks.rank() > 0 {
                continue;
            }
            for (messages, bytes) in self.messages.iter().zip(&found).skip(1) {
                let mut left = &bytes[..];
                for (tensor, range) in messages.get(round).into_iter().flatten() {
                    let into = bytemuck::cast_slice_mut::<f32, u8>(&mut parameters.tensors[*tensor][range.clone()]);
                    let (now, rest) = left.split_at_checked(into.len()).ok_or_else(|| {
                        Error::Failed(format!("expected {} more bytes of a rank, found {}", into.len(), left.len()))
                    })?;
                    match self.has_parts {
                        // Missing elements of a rank are 0, and elements that several ranks have are equal.
                        true => into.iter_mut().zip(now).for_each(|(into, byte)| *into |= byte),
                        false => into.copy_from_slice(now),
                    }
                    left = rest;
                }
            }
        }
        Ok(())
    }

    /// Copies a quantity of a checkpoint to this rank's devices, which read only their part of it.
    ///
    /// # Errors
    /// The file is not of this model, or a device fails.
    pub fn import(
        &self,
        session: &mut Session,
        checkpoint: &Checkpoint,
        name: &str,
        what: Quantity,
    ) -> Result<(), Error> {
        let mut copy = locked(&self.parameters);
        let config = copy.config;
        let held: Vec<Elements> = self.held.iter().map(|part| elements(*part, &copy)).collect();
        copy.tensors.clear(); // not both at a time
        let overlaps = |(tensor, own): &Elements, number, range: &Range<usize>| {
            *tensor == number && own.start < range.end && range.start < own.end
        };
        let is_held = |number, range: &Range<usize>| held.iter().any(|own| overlaps(own, number, range));
        *copy = checkpoint.tensors(name, &config, &is_held)?;
        drop(copy);
        let from = self.parameters.clone();
        session.call(move |_, state| state.import(&locked(&from), what))?;
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn elements(TensorPart { tensor, layer }: TensorPart, parameters: &Parameters) -> Elements {
    (tensor, parameters.range(tensor, layer))
}

/// Distributes tensors over messages: small ones together, large ones over several.
fn packed(parts: impl Iterator<Item = TensorPart>, parameters: &Parameters) -> Vec<Vec<Elements>> {
    let mut messages: Vec<Vec<Elements>> = Vec::new();
    let mut room = 0;
    for (tensor, Range { mut start, end }) in parts.map(|part| elements(part, parameters)) {
        while start < end {
            if room == 0 {
                messages.push(Vec::new());
                room = MOST_PER_MESSAGE;
            }
            let count = room.min(end - start);
            messages.last_mut().into_iter().for_each(|message| message.push((tensor, start..start + count)));
            (start, room) = (start + count, room - count);
        }
    }
    messages
}
