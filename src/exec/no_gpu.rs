//! Replaces the module `gpu` in a build without the feature `cuda`: no GPU is available.

use super::link::{Refusal, Setting};
use super::program::Runners;
use crate::ranks::Ranks;
use anyhow::{Context as _, Error, Result};
use pipesim_models::model_spec::{ModelSpec, Stage, Storage};
use pipesim_schedule::mesh::Mesh;
use std::collections::BTreeMap;

/// Why there are no GPUs.
pub const UNAVAILABLE: Option<&str> =
    Some("this program was built without the feature cuda; build with it, or use the CPU");

/// As with GPUs.
pub const PRODUCTS: &str = "products";

/// As with GPUs.
pub const GRAPHS: &str = "cuda_graphs";

/// Never constructed.
pub enum Gpus {}

impl Gpus {
    pub fn open(_: &Ranks, _: u32, _: Option<u32>, _: bool) -> Result<Gpus> {
        None.context(UNAVAILABLE.unwrap_or_default())
    }

    pub fn with_graphs(self, _: bool) -> Gpus {
        self
    }

    pub fn choose_algorithms(_: Option<&str>) -> Result<()> {
        Ok(())
    }

    pub fn take_cudnn() -> Result<()> {
        None.context(UNAVAILABLE.unwrap_or_default())
    }

    /// Whether this machine has an NVIDIA driver, so that users may expect GPUs.
    pub fn nvidia_files_exist() -> bool {
        std::path::Path::new("/dev/nvidiactl").exists()
    }

    pub fn is_unavailable(_: &Error) -> bool {
        false
    }

    pub fn is_unsupported(_: &Error) -> bool {
        false
    }

    pub fn in_words(&self) -> String {
        match *self {}
    }

    pub fn slices_of_one(&self) -> Option<u32> {
        match *self {}
    }

    pub fn describe(&self, _key: &str, _map: &mut BTreeMap<String, String>) {
        match *self {}
    }

    pub fn begin_sampling(&self) {
        match *self {}
    }

    pub fn end_sampling(&self) -> Vec<String> {
        match *self {}
    }

    pub fn number_bytes(&self) -> usize {
        match *self {}
    }

    pub fn bytes(&self, _: &ModelSpec, _: &[Stage], _: (Mesh, usize)) -> (usize, usize, Vec<usize>) {
        match *self {}
    }

    pub fn storage(&self, _: usize, _: Mesh) -> Storage {
        match *self {}
    }

    pub fn state_bytes(&self, _: &ModelSpec, _: &[Stage], _: (Mesh, usize)) -> usize {
        match *self {}
    }

    pub fn runners<A, B, C, D, E, F>(&self, _: A, _: B, _: C, _: D, _: E, _: F) -> Result<Runners> {
        match *self {}
    }
}

/// Replaces each link between GPUs.
pub struct Absent;

impl Absent {
    pub fn ends() {}

    pub fn probe(_: &Setting<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    pub fn is_best(_: &Setting<'_>) -> bool {
        false
    }
}

pub type MakeEnds = fn();
pub use {Absent as Copy, Absent as Nccl, Absent as Nvshmem, Absent as Staged};
