//! Datasets with how much of them is read.

use super::parse_memory_mib;

/// A dataset that work reads, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAmount {
    /// Its name.
    pub dataset: String,
    /// In MiB.
    pub mib: u64,
}

/// Reads `NAME=SIZE`.
///
/// # Errors
/// What is wrong and what to write.
pub fn parse_data(text: &str) -> Result<DataAmount, String> {
    let remedy = "write the name of a dataset and how much of it is read, as in imagenet-1k=150Gi";
    let Some((dataset, size)) = text.trim().rsplit_once('=') else {
        return Err(format!("{text:?} does not say how much of the dataset is read; {remedy}"));
    };
    if dataset.is_empty() {
        return Err(format!("{text:?} names no dataset; {remedy}"));
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
