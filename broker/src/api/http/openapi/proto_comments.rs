//! Comments of the `.proto` files, by the element that they precede.

use std::collections::HashMap;

use prost_reflect::{
    DescriptorPool, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, FileDescriptor, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor,
};

/// Comments by file and path within the file.
#[derive(Debug)]
pub(super) struct ProtoComments {
    by_place: HashMap<(String, Vec<i32>), String>,
}

impl ProtoComments {
    pub(super) fn of(pool: &DescriptorPool) -> Self {
        let mut by_place = HashMap::new();
        for file in pool.files() {
            let info = file.file_descriptor_proto().source_code_info.as_ref();
            for location in info.into_iter().flat_map(|info| &info.location) {
                if let Some(comment) = &location.leading_comments {
                    by_place.insert((file.name().to_owned(), location.path.clone()), unwrapped(comment));
                }
            }
        }
        Self { by_place }
    }

    pub(super) fn of_service(&self, service: &ServiceDescriptor) -> &str {
        self.at(&service.parent_file(), service.path())
    }

    pub(super) fn of_method(&self, method: &MethodDescriptor) -> &str {
        self.at(&method.parent_file(), method.path())
    }

    pub(super) fn of_message(&self, message: &MessageDescriptor) -> &str {
        self.at(&message.parent_file(), message.path())
    }

    pub(super) fn of_field(&self, field: &FieldDescriptor) -> &str {
        self.at(&field.parent_file(), field.path())
    }

    pub(super) fn of_enum(&self, choices: &EnumDescriptor) -> &str {
        self.at(&choices.parent_file(), choices.path())
    }

    pub(super) fn of_value(&self, value: &EnumValueDescriptor) -> &str {
        self.at(&value.parent_file(), value.path())
    }

    fn at(&self, file: &FileDescriptor, path: &[i32]) -> &str {
        self.by_place.get(&(file.name().to_owned(), path.to_owned())).map_or("", String::as_str)
    }
}

/// Joins the lines of each paragraph.
fn unwrapped(comment: &str) -> String {
    let paragraphs = comment.trim().split("\n\n");
    let joined = paragraphs.map(|text| text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    joined.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_joined() {
        assert_eq!(unwrapped(" One\n sentence.\n"), "One sentence.");
        assert_eq!(unwrapped(" One.\n\n Two\n lines.\n"), "One.\n\nTwo lines.");
    }
}
