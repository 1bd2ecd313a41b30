//! Finds required fields that are not set. A field is required if its comment in the `.proto` file says so; see
//! `build/required_fields.rs`.

/// A required field that is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingField {
    /// Path of the field, as in "spec.gpus.count".
    pub path: String,
    /// First sentence of its comment in the `.proto` file, without a full stop.
    pub hint: &'static str,
}

impl MissingField {
    const fn new(path: String, hint: &'static str) -> Self {
        Self { path, hint }
    }
}

/// A message of the public API.
pub trait RequiredFields {
    /// Adds the missing fields of this message and of the messages in it; `at` is the path of this message.
    fn find_missing(&self, at: &str, missing: &mut Vec<MissingField>);

    /// All required fields that are not set.
    fn missing(&self) -> Vec<MissingField> {
        let mut missing = Vec::new();
        self.find_missing("", &mut missing);
        missing
    }
}

fn path(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

fn each<M: RequiredFields>(messages: &[M], at: &str, name: &str, missing: &mut Vec<MissingField>) {
    for (index, message) in messages.iter().enumerate() {
        message.find_missing(&format!("{}[{index}]", path(at, name)), missing);
    }
}

/// Names the required fields of an absent message in its place, if it has any: they are what the caller has to write.
fn required<M: RequiredFields + Default>(
    message: Option<&M>,
    at: &str,
    hint: &'static str,
    missing: &mut Vec<MissingField>,
) {
    if let Some(message) = message {
        return message.find_missing(at, missing);
    }
    let before = missing.len();
    M::default().find_missing(at, missing);
    if missing.len() == before {
        missing.push(MissingField::new(at.to_owned(), hint));
    }
}

#[allow(unreachable_patterns, reason = "generated: a match ends with `_` also if it names all variants")]
mod generated {
    use super::{MissingField, RequiredFields, each, path, required};
    use crate::v1;

    include!(concat!(env!("OUT_DIR"), "/required_fields.rs"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn paths(message: &impl RequiredFields) -> Vec<String> {
        message.missing().into_iter().map(|field| field.path).collect()
    }

    #[test]
    fn an_empty_request_lacks_all_that_a_request_needs() {
        let spec = ["tenant", "origin", "gpus.class", "gpus.share", "gpus.count", "delivery"];
        let mut expected: Vec<String> = spec.iter().map(|field| format!("spec.{field}")).collect();
        assert_eq!(paths(&v1::QuoteRequestRequest::default()), expected);
        expected.push("idempotency_key".to_owned());
        assert_eq!(paths(&v1::SubmitRequestRequest::default()), expected);
        let half = v1::RequestSpec { tenant: "poly-ml".to_owned(), ..v1::RequestSpec::default() };
        let half = v1::SubmitRequestRequest { spec: Some(half), ..v1::SubmitRequestRequest::default() };
        expected.remove(0);
        assert_eq!(paths(&half), expected);
    }

    #[test]
    fn a_template_stands_for_all_but_tenant_and_origin() {
        let gpus = Some(v1::GpuDemand { count: 2, ..v1::GpuDemand::default() });
        let spec = v1::RequestSpec { template: "notebook".to_owned(), gpus, ..v1::RequestSpec::default() };
        assert_eq!(paths(&spec), ["tenant", "origin"]);
    }

    #[test]
    fn a_selector_stands_for_a_class_and_a_share_is_one_of_several_fields() {
        let gpus = v1::GpuDemand {
            selector: "true".to_owned(),
            share: Some(v1::Share { kind: None }),
            count: 1,
            ..v1::GpuDemand::default()
        };
        assert_eq!(paths(&gpus), ["share"]);
        let share = Some(v1::Share { kind: Some(v1::share::Kind::Milli(500)) });
        assert_eq!(paths(&v1::GpuDemand { share, ..gpus }), Vec::<String>::new());
    }

    #[test]
    fn fields_in_lists_and_variants_have_their_whole_path() {
        let file = |path: &str| v1::PolicyFile { path: path.to_owned(), text: String::new() };
        let bundle = v1::PolicyBundle { files: vec![file("a.yaml"), file("")], ..v1::PolicyBundle::default() };
        assert_eq!(paths(&v1::CheckPolicyRequest { bundle: Some(bundle) }), ["bundle.files[1].path"]);
        assert_eq!(paths(&v1::CheckPolicyRequest { bundle: None }), ["bundle"]);

        assert_eq!(paths(&v1::ChangeMembersRequest { change: None }), ["change"]);
        let learner = v1::AddLearner { id: 4, ..v1::AddLearner::default() };
        let change = Some(v1::change_members_request::Change::AddLearner(learner));
        let missing = ["add_learner.raft_address", "add_learner.client_address"];
        assert_eq!(paths(&v1::ChangeMembersRequest { change }), missing);
    }

    #[test]
    fn the_hint_is_the_first_sentence_of_the_comment() {
        let missing = v1::GetLeaseRequest::default().missing();
        assert_eq!(missing, [MissingField::new("lease".to_owned(), "Id, as in \"lease-7\"")]);
        let missing = v1::GpuDemand::default().missing();
        assert_eq!(missing[0].hint, "GPU class that the devices must belong to; empty with `selector`");
        assert_eq!(v1::ListLeasesRequest::default().missing(), []);
    }
}
