//! Datasets and how much of each the work reads.

use super::amount::parse_memory_mib;

/// A dataset and how much of it the work reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAmount {
    /// Name of the dataset.
    pub dataset: String,
    /// Amount read, in MiB.
    pub mib: u64,
}

/// Parses `NAME=SIZE`.
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_data(text: &str) -> Result<DataAmount, String> {
    let remedy = "write NAME=SIZE, the dataset and how much of it the work reads, as in imagenet-1k=150Gi";
    let Some((dataset, size)) = text.trim().rsplit_once('=') else {
        return Err(format!("{text:?} has no size; {remedy}"));
    };
    if dataset.is_empty() {
        return Err(format!("{text:?} has no dataset name; {remedy}"));
    }
    let mib = parse_memory_mib(size).map_err(|error| format!("{error}, as in imagenet-1k=150Gi"))?;
    Ok(DataAmount { dataset: dataset.to_owned(), mib })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_read() {
        let read = |text| parse_data(text).map(|data| (data.dataset, data.mib));
        assert_eq!(read("imagenet-1k=150Gi"), Ok(("imagenet-1k".to_owned(), 153_600)));
        assert_eq!(read("doi:10.5281/zenodo.1=1Ti"), Ok(("doi:10.5281/zenodo.1".to_owned(), 1 << 20)));
        for text in ["imagenet-1k", "=1Gi", "a=", "a=3", "a=0Gi", "a=-1Gi", ""] {
            assert!(read(text).is_err_and(|error| error.contains("as in")), "{text}");
        }
    }
}
