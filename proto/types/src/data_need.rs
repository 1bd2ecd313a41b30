//! Datasets that work reads.

use serde::{Deserialize, Serialize};

use crate::InvalidId;

/// Datasets of one request.
pub const MAX_DATASETS_PER_REQUEST: usize = 16;
/// Bytes of the name of a dataset.
const MAX_DATASET_NAME_BYTES: usize = 128;
/// What to write where [`is_dataset_name`] says no.
pub const DATASET_NAME_REMEDY: &str = "use 1 to 128 letters, digits and -_./:@, as in imagenet-1k";

/// A dataset that a request's work reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DataNeed {
    /// Name of the dataset, shared by all institutions.
    pub dataset: String,
    /// Amount of data to read, in MiB.
    pub mib: u64,
}

impl DataNeed {
    /// The datasets of a request, from their names and sizes in MiB. `field` is the path of the list.
    ///
    /// # Errors
    /// They are too many, or a text is not the name of a dataset.
    pub fn parse_all(needs: impl IntoIterator<Item = (String, u64)>, field: &str) -> Result<Vec<Self>, InvalidId> {
        let read = needs.into_iter().enumerate().map(|(index, (dataset, mib))| {
            if index >= MAX_DATASETS_PER_REQUEST {
                return Err(InvalidId::new(field, &dataset, "is one dataset too many", "name at most 16"));
            }
            if !is_dataset_name(&dataset) {
                let field = format!("{field}[{index}].dataset");
                return Err(InvalidId::new(&field, &dataset, "is not the name of a dataset", DATASET_NAME_REMEDY));
            }
            Ok(Self { dataset, mib })
        });
        read.collect()
    }
}

/// Whether a text is the name of a dataset: 1 to 128 letters, digits and `-_./:@`.
#[must_use]
pub fn is_dataset_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte);
    !name.is_empty() && name.len() <= MAX_DATASET_NAME_BYTES && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_number_of_datasets_are_bounded() {
        let parse = |names: Vec<&str>| DataNeed::parse_all(names.into_iter().map(|name| (name.to_owned(), 1)), "data");
        assert_eq!(parse(vec!["imagenet-1k", "doi:10.5281/zenodo.1"]).map(|all| all.len()), Ok(2));
        assert_eq!(parse(vec!["a", "a b"]).map_err(|error| error.field), Err("data[1].dataset".to_owned()));
        assert_eq!(parse(vec!["a"; 17]).map_err(|error| error.field), Err("data".to_owned()));
        let [longest, longer] = [128, 129].map(|length| "x".repeat(length));
        assert!(is_dataset_name(&longest) && !is_dataset_name(&longer) && !is_dataset_name(""));
    }
}
