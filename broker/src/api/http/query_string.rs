//! Messages in the query of a URL, for clients that can only send GET, such as `EventSource`.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};
use tonic::Status;

use crate::api::http::json_message::malformed;

/// Parameter that holds a whole message as JSON.
const MESSAGE: &str = "message";

/// The message of a query as JSON: the parameter `message`, or one parameter for each field.
///
/// # Errors
/// `INVALID_ARGUMENT` for a parameter that appears twice, or that excludes another one.
pub fn to_json(message: &MessageDescriptor, query: &str) -> Result<Vec<u8>, Status> {
    let mut fields = Map::new();
    for (name, text) in form_urlencoded::parse(query.as_bytes()) {
        let field = message.get_field_by_json_name(&name).or_else(|| message.get_field_by_name(&name));
        if fields.insert(name.to_string(), value(field.as_ref(), &text)).is_some() {
            return Err(malformed(&name, "the query has it twice"));
        }
    }
    match fields.remove(MESSAGE) {
        Some(Value::String(json)) if fields.is_empty() => Ok(json.into_bytes()),
        Some(_) => Err(malformed(MESSAGE, "the query has other parameters too")),
        None => Ok(Value::Object(fields).to_string().into_bytes()),
    }
}

/// Protobuf's JSON takes numbers and enums as text, but not booleans.
fn value(field: Option<&FieldDescriptor>, text: &str) -> Value {
    let is_boolean = field.is_some_and(|field| field.kind() == Kind::Bool);
    match text {
        "true" if is_boolean => Value::Bool(true),
        "false" if is_boolean => Value::Bool(false),
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;
    use prost::Message as _;

    use super::*;
    use crate::api::http::json_message;
    use crate::api::http::procedures::Procedures;

    fn message(name: &str) -> MessageDescriptor {
        Procedures::all().pool().get_message_by_name(name).expect("a message of the API")
    }

    #[test]
    fn fields_and_the_parameter_message_give_the_same_message() {
        let watch = message("comity.v1.WatchRequest");
        for query in [
            "fromRevision=7&request=req-1",
            "from_revision=7&request=req%2D1",
            "message=%7B%22fromRevision%22%3A7%2C%22request%22%3A%22req-1%22%7D",
        ] {
            let json = to_json(&watch, query).expect("valid");
            let decoded = json_message::decode(watch.clone(), &json).expect("valid").encode_to_vec();
            let typed = v1::WatchRequest::decode(decoded.as_slice()).expect("the same message");
            assert_eq!((typed.from_revision, typed.request.as_str()), (7, "req-1"), "{query}");
        }
        assert_eq!(to_json(&watch, "").expect("valid"), b"{}");
        for refused in ["request=a&request=b", "message=%7B%7D&request=a"] {
            to_json(&watch, refused).expect_err(refused);
        }
        let list = to_json(&message("comity.v1.ListLeasesRequest"), "includeEnded=true").expect("valid");
        assert_eq!(list, br#"{"includeEnded":true}"#);
    }
}
