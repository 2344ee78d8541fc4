//! Pipeline devices whose GPUs or links differ from the others'.

use super::Hardware;
use super::slow_link::SlowLink;

/// What kernels of a GPU are as fast as.
const KERNELS: [&str; 6] =
    ["bf16_tflops", "fp32_tflops", "fp8_tflops", "fp4_tflops", "power_watts", "memory_gbytes_per_s"];

/// What its communication is as fast as.
const LINKS: [&str; 4] = ["link_gbytes_per_s", "network_gbps_per_gpu", "reduce_gbytes_per_s", "exchange_gbytes_per_s"];

/// Returns the kinds of a text such as `h100-sxm:4,a100-sxm-80gb:4`, each with the number of successive pipeline devices that have it; none
/// if the text names one kind for all.
///
/// # Errors
/// A kind without its number of devices.
pub fn kinds(text: &str) -> Result<Vec<(&str, u32)>, String> {
    fn kind(piece: &str) -> Option<(&str, u32)> {
        let (name, count) = piece.rsplit_once(':')?;
        count.parse().ok().filter(|count| (1..=1 << 16).contains(count)).map(|count| (name, count))
    }
    if !text.contains(',') && kind(text).is_none() {
        return Ok(Vec::new());
    }
    let wrong = |piece: &str| {
        format!("expected NAME:DEVICES per kind of GPU, found '{piece}'; write it as in h100-sxm:4,a100-sxm-80gb:4")
    };
    text.split(',').map(|piece| kind(piece).ok_or_else(|| wrong(piece))).collect()
}

impl Hardware {
    /// Returns hardware called `name` whose pipeline devices are, in order, of these kinds, each with its number of devices.
    pub fn of_kinds(name: &str, kinds: &[(Hardware, u32)]) -> Option<Hardware> {
        let (first, _) = kinds.first()?;
        let mut all = first.clone();
        for (kind, count) in kinds {
            let own = all.device_count..all.device_count.saturating_add(*count);
            all.device_count = own.end;
            if kind != first {
                all.name = name.to_string();
                all.chip = name.to_string();
                all.devices.extend(own.map(|device| (device, kind.clone())));
            }
        }
        Some(all)
    }

    /// Returns the GPUs of a pipeline device.
    pub fn of_device(&self, device: u32) -> &Hardware {
        self.devices.get(&device).unwrap_or(self)
    }

    /// Makes the kernels of a pipeline device take `factor` times as long. Its host, links and network stay.
    pub fn slow_device(&mut self, device: u32, factor: f64) {
        let factor = factor.clamp(1e-6, 1e9);
        self.divide(device, &KERNELS, factor);
        self.divide(device, &["kernel_us"], 1.0 / factor);
    }

    /// Divides the bandwidth of a link between two pipeline devices, or of all links of one: to its node, and to other nodes.
    pub fn slow_link(&mut self, link: SlowLink) {
        match link.other {
            Some(_) => self.slow_links.push(link),
            None => self.divide(link.device, &LINKS, link.factor),
        }
    }

    fn divide(&mut self, device: u32, speeds: &[&str], factor: f64) {
        if factor == 1.0 {
            return;
        }
        let mut own = self.devices.remove(&device).unwrap_or_else(|| Hardware {
            devices: Default::default(),
            slow_links: Vec::new(),
            device_count: 0,
            ..self.clone()
        });
        for name in speeds {
            own.field_mut(name).into_iter().for_each(|speed| *speed /= factor);
        }
        self.devices.insert(device, own);
    }

    /// Returns the divisor of the bandwidth between two pipeline devices.
    pub fn link_factor(&self, one: u32, other: u32) -> f64 {
        let ends = [(one, Some(other)), (other, Some(one))];
        let slow = self.slow_links.iter().filter(|link| ends.contains(&(link.device, link.other)));
        slow.map(|link| link.factor).product()
    }

    /// Sets the memory of all devices.
    pub fn set_memory(&mut self, bytes: u64) {
        let own = self.devices.values_mut().map(|own| &mut own.memory_gib);
        own.chain([&mut self.memory_gib]).for_each(|gib| *gib = bytes as f64 / f64::from(1 << 30));
    }

    /// Checks that a pipeline of `devices` has the devices that are named.
    ///
    /// # Errors
    /// Another number of devices, or a device that does not exist.
    pub fn check_devices(&self, devices: u32) -> Result<(), String> {
        let (named, last) = (self.device_count, devices.saturating_sub(1));
        if named > 0 && named != devices {
            return Err(format!(
                "expected `hardware` to name the GPUs of the {devices} devices of `stages`, found {named}; change the numbers after the colons"
            ));
        }
        let links = self.slow_links.iter().flat_map(|link| [Some(link.device), link.other]).flatten();
        match self.devices.keys().copied().chain(links).find(|&device| device > last) {
            Some(device) => Err(format!(
                "`straggler` or `slow-link` names device {device}, but there are devices 0 to {last}; correct it"
            )),
            None => Ok(()),
        }
    }

    /// Returns the mean 16-bit peak of `devices` pipeline devices, in FLOP/s, of GPUs that are not slowed down.
    pub fn mean_peak(&self, devices: u32) -> f64 {
        let others = self.devices.values().filter(|own| own.name != self.name);
        let more: f64 = others.map(|own| own.bf16_tflops - self.bf16_tflops).sum();
        (self.bf16_tflops + more / f64::from(devices)) * 1e12
    }
}
