//! The kernels, loaded on a device.

use super::api::context::Context;
use super::api::driver::{FunctionHandle, ModuleHandle};
use super::check::Unfit;
use super::compiler;
use super::driver::Facts;
use super::kernel::{self, Launch, Precision};
use anyhow::{Context as _, Result, ensure};
use std::ffi::CString;
use std::sync::Arc;

/// All kernels of one precision, loaded in one context.
pub struct Kernels {
    context: Arc<Context>,
    module: ModuleHandle,
    /// In the order of [`kernel::NAMES`].
    functions: [FunctionHandle; kernel::NAMES.len()],
    shared_bytes: u32,
}

impl Kernels {
    /// Finds or compiles the code for the device, and loads every kernel.
    pub fn load(context: &Arc<Context>, facts: &Facts, precision: Precision) -> Result<Kernels> {
        let code = compiler::kernels(precision, facts.capability)?;
        context.make_current()?;
        let api = context.api;
        let module =
            api.load_module(&code.image).with_context(|| format!("loading the kernels of {:?}", code.origin))?;
        let function = |name: &str| -> Result<FunctionHandle> {
            let name = CString::new(format!("{name}{}", precision.suffix()))?;
            api.function(module, &name).with_context(|| {
                format!("expected a kernel {name:?} in the code of {:?}, found none: make the code anew", code.origin)
            })
        };
        let functions = kernel::NAMES.iter().map(|name| function(name)).collect::<Result<Vec<_>>>();
        match functions.map(<[FunctionHandle; kernel::NAMES.len()]>::try_from) {
            Ok(Ok(functions)) => {
                Ok(Kernels { context: context.clone(), module, functions, shared_bytes: facts.shared_bytes })
            }
            outcome => {
                api.unload_module(module)?;
                Err(outcome.err().unwrap_or_else(|| anyhow::anyhow!("the table of kernels has another length")))
            }
        }
    }

    /// The kernel of this name, without suffix. Panics if there is none: names are written in this layer alone.
    pub(super) fn get(&self, name: &str) -> FunctionHandle {
        let index = kernel::NAMES.binary_search(&name).unwrap_or_else(|_| panic!("no kernel is called {name}"));
        self.functions[index]
    }

    /// Lets a kernel be launched with so much dynamic shared memory.
    pub(super) fn allow(&self, name: &str, launch: Launch) -> Result<()> {
        let bytes = launch.shared_bytes;
        if bytes <= kernel::DEFAULT_SHARED_BYTES {
            return Ok(());
        }
        ensure!(
            bytes <= self.shared_bytes,
            Unfit(format!(
                "expected {bytes} bytes of shared memory for {name}, found {} on this GPU: choose a model with smaller heads, or \
                 bfloat16",
                self.shared_bytes
            ))
        );
        self.context.make_current()?;
        Ok(self.context.api.allow_shared_bytes(self.get(name), bytes)?)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.context.make_current().and_then(|()| self.context.api.unload_module(self.module));
    }
}
