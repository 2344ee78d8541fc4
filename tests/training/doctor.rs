//! The doctor's judgement of what its probes find: environments, limits, copies between GPUs, and what they allow.

use pipesim::internals::doctor::{
    COPIED_BYTES, Copied, Finding, Need, PROBES, Row, Status, locked_memory_finding, mpi_finding, pattern,
    peer_finding, shared_memory_finding, slurm_finding,
};

/// Rows that are ok, except those listed.
fn rows(unwell: &[(&str, Status)]) -> Vec<Row> {
    let row = |name: &'static str| {
        let status = unwell.iter().find(|(other, _)| *other == name).map_or(Status::Ok, |(_, status)| *status);
        let fix = (status != Status::Ok).then(|| format!("mend {name}"));
        let finding = Finding { status, found: "this".to_string(), fix };
        Row { name, finding, duration_ms: 0.0 }
    };
    PROBES.iter().map(|probe| row(probe.name)).collect()
}

fn usable(unwell: &[(&str, Status)]) -> Vec<&'static str> {
    let rows = rows(unwell);
    Need::ALL.into_iter().filter(|need| need.verdict(&rows).usable).map(Need::name).collect()
}

#[test]
fn what_can_be_used_follows_from_what_was_found() {
    assert_eq!(usable(&[]), ["cuda", "nvshmem", "nccl", "mpi"]);
    for status in [Status::Missing, Status::Broken, Status::Unknown] {
        assert_eq!(usable(&[("driver", status)]), ["mpi"]);
        assert_eq!(usable(&[("devices", status)]), ["mpi"]);
        assert_eq!(usable(&[("nvrtc", status)]), ["mpi"]);
        assert_eq!(usable(&[("cublaslt", status)]), ["mpi"]);
        assert_eq!(usable(&[("nvshmem", status)]), ["cuda", "nccl", "mpi"]);
        assert_eq!(usable(&[("nccl", status)]), ["cuda", "nvshmem", "mpi"]);
        assert_eq!(usable(&[("mpi", status)]), ["cuda", "nvshmem", "nccl"]);
        for probe in ["nvlink", "green-contexts", "locked-memory", "processor"] {
            assert_eq!(usable(&[(probe, status)]), ["cuda", "nvshmem", "nccl", "mpi"], "{probe}");
        }
    }
    // Unknown is acceptable: one GPU has no peers, and one machine needs no Slurm. Broken is not: wrong bytes, hidden peers.
    assert_eq!(usable(&[("peer-access", Status::Unknown)]), ["cuda", "nvshmem", "nccl", "mpi"]);
    assert_eq!(usable(&[("peer-access", Status::Broken)]), ["cuda", "mpi"]);
    assert_eq!(usable(&[("slurm", Status::Broken)]), ["cuda", "mpi"]);
    assert_eq!(usable(&[("shared-memory", Status::Broken)]), ["cuda"]);
}

#[test]
fn the_first_thing_in_the_way_is_named_with_what_to_do() {
    let rows = rows(&[("driver", Status::Missing), ("devices", Status::Unknown)]);
    assert_eq!(Need::Cuda.verdict(&rows).because, "driver is missing: this; mend driver");
    assert_eq!(Need::Mpi.verdict(&rows).because, "mpi is ok");
}

fn copied(from: usize, to: usize, direct: bool, wrong: usize, gigabytes_per_second: f64) -> Copied {
    Copied { from, to, direct, wrong, gigabytes_per_second }
}

#[test]
fn a_wrong_byte_is_broken_and_a_way_through_the_host_is_not() {
    let well = [copied(0, 1, true, 0, 24.94), copied(1, 0, false, 0, 6.0)];
    assert_eq!(peer_finding(&well), Finding::ok("0 to 1 direct 24.9 GB/s; 1 to 0 through the host 6.0 GB/s"));
    let ill = peer_finding(&[well[0], copied(1, 0, true, 3, 24.9)]);
    assert_eq!(ill.status, Status::Broken);
    assert_eq!(ill.found, "1 to 0 direct 24.9 GB/s, 3 of 16777216 bytes wrong");
    assert!(ill.fix.is_some());
}

#[test]
fn many_pairs_are_reported_as_a_range() {
    let pairs: Vec<Copied> = (0..12).map(|n| copied(n, n + 1, n > 0, 0, 100.0 + n as f64)).collect();
    assert_eq!(peer_finding(&pairs), Finding::ok("11 of 12 pairs direct, 100.0 to 111.0 GB/s"));
}

#[test]
fn a_copy_shifted_by_a_page_is_wrong_almost_everywhere() {
    let bytes = pattern();
    assert_eq!(bytes.len(), COPIED_BYTES);
    // The generator's first word from seed 0, as published.
    assert_eq!(bytes[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
    let same = bytes.iter().zip(&bytes[4096..]).filter(|(one, other)| one == other).count();
    assert!(same < COPIED_BYTES / 128, "{same}");
}

fn variables<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| pairs.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string())
}

#[test]
fn slurm_hides_peers_with_gpus_per_task_and_with_one_visible_gpu_a_rank() {
    let status = |pairs: &[(&str, &str)], gpus| slurm_finding(variables(pairs), gpus).status;
    let job = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4")];
    assert_eq!(status(&job, 4), Status::Ok);
    assert_eq!(status(&[job[0], job[1], ("SLURM_GPUS_PER_TASK", "1")], 4), Status::Broken);
    assert_eq!(status(&[job[0], job[1], ("SLURM_TRES_PER_TASK", "cpu:2,gres/gpu:1")], 4), Status::Broken);
    assert_eq!(status(&[job[0], job[1], ("SLURM_TRES_PER_TASK", "cpu=2")], 4), Status::Ok);
    assert_eq!(status(&[job[0], job[1], ("CUDA_VISIBLE_DEVICES", "2")], 4), Status::Broken);
    assert_eq!(status(&[job[0], job[1], ("CUDA_VISIBLE_DEVICES", "0,1,2,3")], 8), Status::Ok);
    // One task a machine hides nothing from another of the same machine.
    let spread = [job[0], job[1], ("SLURM_JOB_NUM_NODES", "4"), ("SLURM_GPUS_PER_TASK", "1")];
    assert_eq!(status(&spread, 4), Status::Ok);
    assert_eq!(status(&[("OMPI_COMM_WORLD_SIZE", "2"), ("CUDA_VISIBLE_DEVICES", "1")], 2), Status::Broken);
    // Who shows one GPU to one process means it so.
    assert_eq!(status(&[("CUDA_VISIBLE_DEVICES", "1")], 2), Status::Ok);
    assert_eq!(status(&[], 0), Status::Ok);
}

#[test]
fn mpi_wants_a_launcher_and_a_build_that_has_it() {
    let none = variables(&[]);
    assert_eq!(mpi_finding(Some("mpirun (Open MPI) 4.1.4".to_string()), true, &none).status, Status::Ok);
    let without = mpi_finding(Some("mpirun (Open MPI) 4.1.4".to_string()), false, &none);
    assert_eq!(without.found, "mpirun (Open MPI) 4.1.4, this build does not have MPI");
    assert!(without.fix.is_some_and(|fix| fix.contains("--features mpi")));
    assert_eq!(mpi_finding(None, true, &none).status, Status::Missing);
    let started = mpi_finding(None, true, variables(&[("OMPI_COMM_WORLD_SIZE", "4")]));
    assert!(started.found.contains("started by Open MPI (OMPI_COMM_WORLD_SIZE=4)"), "{}", started.found);
}

#[test]
fn shared_memory_of_a_containers_default_size_is_too_little() {
    let text = |size: u64, free: u64| {
        format!("Filesystem 1024-blocks Used Available Capacity Mounted on\nshm {size} 0 {free} 0% /dev/shm\n")
    };
    assert_eq!(shared_memory_finding(&text(65536, 65536)).status, Status::Broken);
    let well = shared_memory_finding(&text(12 << 20, 11 << 20));
    assert_eq!(well, Finding::ok("/dev/shm is writable, 11 GiB of 12 GiB free"));
    assert_eq!(shared_memory_finding("").status, Status::Unknown);
}

#[test]
fn the_limit_of_locked_memory_is_read_from_the_kernels_table() {
    let line =
        |soft: &str| format!("Max processes 1 1 processes\nMax locked memory         {soft}  unlimited  bytes\n");
    assert_eq!(locked_memory_finding(&line("unlimited")), Finding::ok("unlimited"));
    assert_eq!(locked_memory_finding(&line("8388608")).status, Status::Unknown);
    assert!(locked_memory_finding(&line("8388608")).found.starts_with("8 MiB"));
    assert_eq!(locked_memory_finding(&line("2147483648")), Finding::ok("2048 MiB"));
    assert_eq!(locked_memory_finding("").status, Status::Unknown);
}
