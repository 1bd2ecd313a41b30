//! Builds the request from the flags, or from a file.

use comity_proto::v1;

use super::spec_args::SpecArgs;
use super::spec_file;
use crate::failure::Failure;

/// The request as an API message.
///
/// # Errors
/// [`Failure`] that names the flag, or file, line and column.
pub fn read_spec(args: &SpecArgs) -> Result<v1::RequestSpec, Failure> {
    match &args.file {
        Some(file) => spec_file::read(file)?.to_message(),
        None if args.class.is_none() && args.selector.is_none() && args.template.is_none() => {
            Err(Failure::usage("neither --class nor --selector nor --template is given")
                .field("--class", "")
                .remedy("give --class NAME, --selector CEL or --template NAME"))
        }
        None => args.to_message(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_or_a_selector_is_needed_and_both_are_named() {
        let failure = read_spec(&SpecArgs::default()).expect_err("neither is there");
        assert_eq!(failure.exit.number(), 2);
        assert!(failure.remedy.contains("--class") && failure.remedy.contains("--selector"), "{failure:?}");
        let args = SpecArgs { selector: Some("device.memoryMiB > 1".to_owned()), ..SpecArgs::default() };
        assert!(read_spec(&args).is_ok());
        let args = SpecArgs { template: Some("notebook-small".to_owned()), ..SpecArgs::default() };
        assert!(read_spec(&args).is_ok());
    }
}
