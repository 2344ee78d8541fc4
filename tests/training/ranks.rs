//! What ranks agree on before a run: their launcher, clocks, communicators, frames, links and GPUs.

use pipesim::internals::exec::gpu_places;
use pipesim::internals::exec::link::{LINKS, LinkKind, Refusal, Setting};
use pipesim::internals::ranks::{Alignment, CLOCK_ROUNDS, Communicators, Frame, Lost, Ranks, started};
use std::cell::Cell;

/// The outcome for variables such as `RANK=0 WORLD_SIZE=4`: the number of processes, or the error.
fn of(variables: &str) -> Result<u32, String> {
    let pairs: Vec<(&str, &str)> = variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    let look = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
    started(look).map(|started| started.map_or(1, |started| started.size)).map_err(|error| error.to_string())
}

#[test]
fn launchers_are_recognised() {
    assert_eq!(of(""), Ok(1));
    assert_eq!(of("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1"), Ok(4));
    assert_eq!(of("PMI_RANK=0 PMI_SIZE=2"), Ok(2));
    assert_eq!(of("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 PMIX_RANK=3 SLURM_NTASKS=4"), Ok(4));
    // a batch script, in which no step was started
    assert_eq!(of("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=5"), Ok(1));
    // mpirun under Slurm: the step is that of its daemons
    assert_eq!(of("OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"), Ok(8));
    // scripts for PyTorch that copy MPI's numbers
    assert_eq!(of("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 RANK=1 WORLD_SIZE=4 MASTER_ADDR=a"), Ok(4));
    assert_eq!(of("RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none"), Ok(1));
    // left over in a shell: describes no process
    assert_eq!(of("WORLD_SIZE=8"), Ok(1));
}

#[test]
fn contradictions_name_both_variables() {
    for (variables, words) in [
        ("OMPI_COMM_WORLD_SIZE=4 PMI_SIZE=2", "OMPI_COMM_WORLD_SIZE=4 and PMI_SIZE=2"),
        ("OMPI_COMM_WORLD_SIZE=4 RANK=0 WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=4 and WORLD_SIZE=2"),
        ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 RANK=1 WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2 and RANK=1"),
        ("PMI_RANK=4 PMI_SIZE=4", "PMI_RANK=4 and PMI_SIZE=4"),
        ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 PMIX_RANK=2", "SLURM_PROCID=1 and PMIX_RANK=2"),
        (
            "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMIX_RANK=1 RANK=1 WORLD_SIZE=4",
            "SLURM_STEP_NUM_TASKS=2 and WORLD_SIZE=4",
        ),
        ("SLURM_STEP_NUM_TASKS=4", "--mpi=pmix"),
        ("PMI_SIZE=many", "PMI_SIZE, which launchers set, found 'many'"),
        ("RANK=0 WORLD_SIZE=4 TORCHELASTIC_RUN_ID=none", "torchrun started 4 processes (RANK=0, WORLD_SIZE=4)"),
        ("RANK=3 WORLD_SIZE=4 MASTER_ADDR=node1", "RANK=3, WORLD_SIZE=4, MASTER_ADDR=node1 describe one of 4"),
        // srun starts one torchrun per node
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 RANK=0 WORLD_SIZE=16 TORCHELASTIC_RUN_ID=1", "torchrun started 16"),
    ] {
        let error = of(variables).unwrap_err();
        assert!(error.contains(words) && !error.contains('\n'), "{variables}: {error}");
    }
}

/// Rank 0's clock runs 5 s ahead, and every other exchange brings its reading.
#[test]
fn the_offset_is_within_the_uncertainty() {
    let here = Alignment::align(0, 1, true, |_| unreachable!()).unwrap();
    let calls = Cell::new(0);
    let exchange = |bytes: Vec<u8>| {
        calls.set(calls.get() + 1);
        let theirs = (here.now_ns() + 5_000_000_000).to_le_bytes().to_vec();
        Ok(if bytes.is_empty() { vec![Vec::new(), bytes] } else { vec![theirs, bytes] })
    };
    // The last exchange carries widths: rank 0's here is a clock reading, too, and so the widest.
    let clock = Alignment::align(1, 2, false, exchange).unwrap();
    let wrong_ns = (clock.offset_ns - 5_000_000_000).unsigned_abs();
    assert!(wrong_ns <= clock.uncertainty_ns && wrong_ns < 1_000_000, "off by {wrong_ns} ns");
    assert_eq!(calls.get(), 2 * CLOCK_ROUNDS + 1);
    assert_eq!((here.offset_ns, here.uncertainty_ns), (0, 0));
}

#[test]
fn equal_groups_have_communicators_of_their_own_which_the_next_session_uses_again() {
    let communicators = Communicators::default();
    let both = vec![0, 1];
    let groups = [both.clone(), both.clone(), vec![1, 2]];
    assert_eq!(communicators.number(&groups), (vec![0, 1, 2], groups.to_vec()));
    assert_eq!(communicators.number(&groups[1..]), (vec![0, 2], Vec::new()));
    let three = vec![both.clone(); 3];
    assert_eq!(communicators.number(&three), (vec![0, 1, 3], vec![both]));
}

#[test]
fn frames_are_read_as_written_and_invalid_ones_are_errors() {
    let lost = Lost { text: "gone".to_string(), dead: Some(3) };
    let parts = vec![vec![1, 2], Vec::new(), vec![0; 300]];
    for frame in [
        Frame::Hello(7),
        Frame::All(parts),
        Frame::Lost(lost),
        Frame::Leave(Some("why".to_string()), 6),
        Frame::Ping,
        Frame::Stop(2),
    ] {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        assert_eq!(Frame::read(&mut &bytes[..]).unwrap(), frame);
        bytes.push(0);
        bytes[0] += 1; // one byte more than the frame has
        assert!(Frame::read(&mut &bytes[..]).is_err(), "{frame:?}");
        for end in 0..bytes.len() - 1 {
            assert!(Frame::read(&mut &bytes[..end]).is_err(), "{frame:?} to {end}");
        }
    }
    assert!(Frame::read(&mut &[255; 32][..]).is_err()); // longer than any frame
    assert!(Frame::read(&mut &[1, 0, 0, 0, 0, 0, 0, 0, 99][..]).is_err());
}

#[test]
fn the_table_says_who_goes_with_whom() {
    assert_eq!(
        LinkKind::legal_pairs(),
        "Legal device and link pairs: cpu and timed with local, and with mpi under mpirun; cuda with copy, nvshmem (one rank \
         per device), nccl (one GPU per device), local (through the hosts' memory), and mpi under mpirun."
    );
    let ranks = Ranks::alone();
    let on = |gpus| Setting { gpus, ranks: &ranks, devices: 2, slices: None };
    assert_eq!(LinkKind::best(&on(true)).unwrap().name, "copy");
    assert_eq!(LinkKind::best(&on(false)).unwrap().name, "local");
    let nccl = LINKS.iter().find(|link| link.name == "nccl").unwrap();
    let why = "`link` nccl: these devices use `link` local or mpi; leave `link` out";
    assert_eq!(nccl.check(&on(false)), Err(Refusal::of(why)));
}

#[test]
fn a_gpu_a_device_or_several() {
    let ranks = Ranks::alone();
    assert_eq!(gpu_places(&ranks, 2, None, 4).unwrap(), [(0, 0), (1, 0)]);
    assert_eq!(gpu_places(&ranks, 4, Some(2), 2).unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert!(gpu_places(&ranks, 4, None, 2).unwrap_err().to_string().contains("at most 2 devices"));
    assert!(gpu_places(&ranks, 3, Some(2), 1).is_err());
}
