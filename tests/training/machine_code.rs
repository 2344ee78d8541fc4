//! As much of the machine code of compute capability 9.0 as the tests count. NVIDIA does not document the encoding; `nvdisasm` 13.2 lists
//! the same instructions, operands and targets for every kernel. An instruction has 16 bytes: its opcode in bits 0 to 11, the number of the
//! scoreboard that a read frees when its data are there in bits 110 to 112 (7: none), and the scoreboards that the instruction waits for in
//! bits 116 to 121.

/// `LDG`: read of global memory. Bits 73 to 75 are its width.
const READ: u128 = 0x981;
/// The width of 128 bits.
const WIDE: u128 = 6;
/// `HMMA`: product of a tensor core.
const PRODUCT: u128 = 0x23c;
/// `LDSM`: read of matrices in shared memory.
const MATRIX_READ: u128 = 0x83b;
/// `LDL` and `STL`: read and write of local memory.
const LOCAL: [u128; 2] = [0x983, 0x387];
/// `BRA` to a constant distance.
const BRANCH: u128 = 0x947;

/// A kernel's instructions.
pub struct MachineCode(Vec<u128>);

/// Instructions of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loop {
    /// Products of tensor cores.
    pub products: usize,
    /// Reads of four matrices of shared memory.
    pub matrix_reads: usize,
    pub instructions: usize,
}

fn bits(instruction: u128, from: u32, count: u32) -> u128 {
    instruction >> from & ((1 << count) - 1)
}

fn opcode(instruction: u128) -> u128 {
    bits(instruction, 0, 12)
}

impl MachineCode {
    /// The instructions in these bytes of a section.
    pub fn of(bytes: &[u8]) -> MachineCode {
        MachineCode(bytes.chunks_exact(16).map(|bytes| u128::from_le_bytes(bytes.try_into().unwrap())).collect())
    }

    /// Largest number of reads of 16 bytes that are issued before the first of them is waited for.
    pub fn reads_at_once(&self) -> usize {
        let (mut scoreboards, mut reads, mut most) = (0, 0, 0);
        for &instruction in &self.0 {
            if bits(instruction, 116, 6) & scoreboards != 0 {
                (scoreboards, reads) = (0, 0);
            }
            if opcode(instruction) == READ && bits(instruction, 73, 3) == WIDE {
                scoreboards |= 1 << bits(instruction, 110, 3);
                reads += 1;
                most = most.max(reads);
            }
        }
        most
    }

    /// Reads and writes of local memory.
    pub fn local(&self) -> usize {
        self.0.iter().filter(|&&instruction| LOCAL.contains(&opcode(instruction))).count()
    }

    /// The loop with the most products, the shortest if several have as many.
    pub fn product_loop(&self) -> Loop {
        let loops = self.0.iter().enumerate().filter_map(|(at, &instruction)| {
            // signed, in units of four bytes from the next instruction: bits 34 to 81, then 16 to 23
            let distance = ((bits(instruction, 34, 48) as i64) << 16 >> 8) | bits(instruction, 16, 8) as i64;
            let target = usize::try_from(at as i64 + 1 + distance / 4).ok()?;
            (opcode(instruction) == BRANCH && target < at).then(|| Self::counted(&self.0[target..=at]))
        });
        loops.max_by_key(|found| (found.products, std::cmp::Reverse(found.instructions))).unwrap_or_default()
    }

    fn counted(instructions: &[u128]) -> Loop {
        let count = |of: u128| instructions.iter().filter(|&&instruction| opcode(instruction) == of).count();
        Loop { products: count(PRODUCT), matrix_reads: count(MATRIX_READ), instructions: instructions.len() }
    }
}
