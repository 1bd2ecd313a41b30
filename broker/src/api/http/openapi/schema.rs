//! JSON schemas of messages and enums.

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::proto_comments::ProtoComments;
use crate::api::http::procedures::Procedures;

/// First word of the comment of a field without which a call is refused.
const REQUIRED: &str = "Required.";

/// Schemas that the document refers to. A reference adds its schema.
#[derive(Debug)]
pub(super) struct Schemas<'a> {
    comments: &'a ProtoComments,
    schemas: Map<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(comments: &'a ProtoComments) -> Self {
        Self { comments, schemas: Map::new() }
    }

    pub(super) fn into_components(self) -> Value {
        Value::Object(self.schemas)
    }

    pub(super) fn add(&mut self, name: &str, schema: Value) {
        self.schemas.insert(name.to_owned(), schema);
    }

    /// Refers to a schema that was added by name.
    pub(super) fn named(name: &str) -> Value {
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// Refers to a message of the API by its full name.
    pub(super) fn reference_to(&mut self, name: &str) -> Value {
        Procedures::all().pool().get_message_by_name(name).map_or_else(|| json!({}), |message| self.reference(&message))
    }

    pub(super) fn reference(&mut self, message: &MessageDescriptor) -> Value {
        let name = message.full_name();
        if !self.schemas.contains_key(name) {
            // Ends the recursion of messages that contain themselves.
            self.add(name, Value::Null);
            let schema = self.of_message(message);
            self.add(name, schema);
        }
        Self::named(name)
    }

    /// Schema of one value.
    pub(super) fn of_kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Double => json!({ "type": "number", "format": "double" }),
            Kind::Float => json!({ "type": "number", "format": "float" }),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({ "type": "integer", "format": "int32" }),
            Kind::Uint32 | Kind::Fixed32 => json!({ "type": "integer", "format": "uint32", "minimum": 0 }),
            // As text, because JavaScript's numbers have 53 bits.
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({ "type": "string", "format": "int64" }),
            Kind::Uint64 | Kind::Fixed64 => json!({ "type": "string", "format": "uint64" }),
            Kind::Bool => json!({ "type": "boolean" }),
            Kind::String => json!({ "type": "string" }),
            Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
            Kind::Message(message) => self.reference(message),
            Kind::Enum(choices) => self.reference_to_enum(choices),
        }
    }

    fn reference_to_enum(&mut self, choices: &EnumDescriptor) -> Value {
        let values: Vec<_> = choices.values().collect();
        let meanings = values.iter().map(|value| format!("- `{}`: {}", value.name(), self.comments.of_value(value)));
        let meanings: Vec<String> = meanings.collect();
        let description = format!("{}\n\n{}", self.comments.of_enum(choices), meanings.join("\n"));
        let names: Vec<&str> = values.iter().map(|value| value.name()).collect();
        self.add(choices.full_name(), json!({ "type": "string", "description": description, "enum": names }));
        Self::named(choices.full_name())
    }

    fn of_message(&mut self, message: &MessageDescriptor) -> Value {
        let fields = message.fields().map(|field| (field.json_name().to_owned(), self.of_field(&field)));
        let properties: Map<String, Value> = fields.collect();
        let required = message.fields().filter(|field| self.comments.of_field(field).starts_with(REQUIRED));
        let required: Vec<String> = required.map(|field| field.json_name().to_owned()).collect();
        let mut schema = json!({
            "type": "object",
            "description": self.comments.of_message(message),
            "properties": properties,
        });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    fn of_field(&mut self, field: &FieldDescriptor) -> Value {
        let mut schema = if field.is_map() {
            let entry = field.kind().as_message().map(|entry| entry.map_entry_value_field().kind());
            json!({ "type": "object", "additionalProperties": entry.map(|kind| self.of_kind(&kind)) })
        } else if field.is_list() {
            json!({ "type": "array", "items": self.of_kind(&field.kind()) })
        } else {
            self.of_kind(&field.kind())
        };
        schema["description"] = json!(format!("{}{}", self.comments.of_field(field), alternatives(field)));
        schema
    }
}

/// A sentence about the fields of which at most one is set.
fn alternatives(field: &FieldDescriptor) -> String {
    let Some(oneof) = field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) else { return String::new() };
    let names: Vec<String> = oneof.fields().map(|field| format!("`{}`", field.json_name())).collect();
    format!(" At most one of {} is set.", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_named_and_numbers_of_64_bits_are_text() {
        let comments = ProtoComments::of(Procedures::all().pool());
        let mut schemas = Schemas::new(&comments);
        schemas.reference_to("comity.v1.Share");
        let components = schemas.into_components();
        let share = &components["comity.v1.Share"]["properties"];
        assert_eq!(share["memoryMib"]["type"], "string");
        assert_eq!(share["milli"]["type"], "integer");
        assert_eq!(share["whole"]["$ref"], "#/components/schemas/comity.v1.Share.Whole");
        let description = share["migProfile"]["description"].as_str().expect("text");
        assert!(description.ends_with("At most one of `whole`, `milli`, `migProfile`, `memoryMib` is set."));
    }
}
