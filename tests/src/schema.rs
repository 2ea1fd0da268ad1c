//! JSON schemas, held against the documents that should follow them.

use crate::empty;
use serde_json::Value;

/// A compiled schema.
pub struct Schema {
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
}

impl Schema {
    /// Compiles what `qdiff schema WHAT` prints, or of what the lab makes `qdiff-lab schema WHAT`.
    ///
    /// # Panics
    /// If it is no schema of draft 2020-12.
    pub fn printed(what: &str) -> Self {
        let program = if ["bench", "score"].contains(&what) { "qdiff-lab " } else { "" };
        let said = empty().qdiff(&format!("{program}schema {what}")).exits(0);
        let schema: Value = serde_json::from_str(&said.stdout).expect("a schema is JSON");
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("schema.json", schema).expect("a schema is JSON");
        let index = compiler.compile("schema.json", &mut schemas).expect("the schema follows its own");
        Self { schemas, index }
    }

    /// Whether `value` follows it.
    ///
    /// # Errors
    /// What does not, and where.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let outcome = self.schemas.validate(value, self.index);
        outcome.map_err(|e| e.to_string())
    }
}
