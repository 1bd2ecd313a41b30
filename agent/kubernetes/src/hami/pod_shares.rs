//! The devices that HAMi's scheduler gave a pod.

use super::check_uuid;

/// Largest annotation that is read: every container of a pod on every device of a node.
const MAX_POD_SHARES_BYTES: usize = 64 << 10;

/// A container's part of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodShare {
    /// UUID of the device.
    pub uuid: String,
    /// Device memory in MiB.
    pub memory_mib: u32,
    /// Compute in percent of the device; 0: no limit.
    pub cores: u32,
}

/// Reads the annotation, as in `GPU-a,NVIDIA,20000,30:;`: devices end with ":", containers with ";". Init containers are
/// among them, so that the sum is at most what the pod uses at once.
///
/// # Errors
/// One sentence.
pub fn pod_shares(text: &str) -> Result<Vec<PodShare>, String> {
    if text.len() > MAX_POD_SHARES_BYTES {
        return Err(format!("it has {} bytes, more than the {MAX_POD_SHARES_BYTES} that are read", text.len()));
    }
    text.split([':', ';']).map(str::trim).filter(|device| !device.is_empty()).map(share).collect()
}

fn share(device: &str) -> Result<PodShare, String> {
    let fields: Vec<&str> = device.split(',').collect();
    let &[uuid, _kind, memory, cores] = fields.as_slice() else {
        return Err(format!("{device:?} is no device: it has {} fields, not 4", fields.len()));
    };
    check_uuid(uuid)?;
    let number = |field: &str| field.parse::<u32>().map_err(|_| format!("{field:?} of {device:?} is not a number"));
    Ok(PodShare { uuid: uuid.to_owned(), memory_mib: number(memory)?, cores: number(cores)? })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn shares_of_all_containers_are_read() {
        let text = "GPU-a,NVIDIA,3000,0:GPU-b,NVIDIA,5000,20:;;GPU-a,NVIDIA,20000,30:;";
        let shares = pod_shares(text).unwrap();
        let read: Vec<_> = shares.iter().map(|it| (it.uuid.as_str(), it.memory_mib, it.cores)).collect();
        assert_eq!(read, [("GPU-a", 3_000, 0), ("GPU-b", 5_000, 20), ("GPU-a", 20_000, 30)]);
        assert!(pod_shares(";").unwrap().is_empty() && pod_shares("").unwrap().is_empty());
    }

    #[test]
    fn an_unreadable_annotation_gives_one_sentence() {
        for (text, part) in [
            ("GPU-a,NVIDIA,3000", "3 fields"),
            ("GPU-a,NVIDIA,3000,0,1:;", "5 fields"),
            ("GPU-a,NVIDIA,-1,0:;", "\"-1\""),
            ("GPU-a,NVIDIA,1,99999999999:;", "not a number"),
            ("GPU-a[0-1],NVIDIA,1,1:;", "not the UUID"),
            ("nonsense", "1 fields"),
        ] {
            let error = pod_shares(text).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
        assert!(pod_shares(&";".repeat(100_000)).unwrap_err().contains("100000 bytes"));
    }
}
