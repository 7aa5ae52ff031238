//! Chat templates: Jinja, as a folder or a GGUF file has them.

use anyhow::{Context, Result};
use candle::quantized::gguf_file::{Content, Value};
use minijinja::syntax::SyntaxConfig;
use minijinja::{context, Environment, Error, ErrorKind};
use std::path::Path;

/// A template and the tokens that it names.
#[derive(Debug, PartialEq)]
pub struct Template {
    pub text: String,
    pub bos_token: String,
    pub eos_token: String,
}

impl Template {
    /// Of `chat_template.jinja`, else of `tokenizer_config.json`, which has the tokens in both cases; none where there is neither.
    pub fn of_folder(folder: &Path) -> Result<Option<Self>> {
        let read = |name: &str| match std::fs::read_to_string(folder.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some).with_context(|| format!("cannot read {}", folder.join(name).display())),
        };
        let config = read("tokenizer_config.json")?.unwrap_or_else(|| "{}".into());
        let config: serde_json::Value = serde_json::from_str(&config).context("tokenizer_config.json")?;
        // A string, or several templates with names.
        let of_config = || match &config["chat_template"] {
            serde_json::Value::Array(all) => all.iter().find(|one| one["name"] == "default")?["template"].as_str(),
            one => one.as_str(),
        };
        let text = read("chat_template.jinja")?.or_else(|| of_config().map(str::to_owned));
        // A string, or an object with its properties.
        let token = |name: &str| {
            let token = &config[name];
            token.as_str().or_else(|| token["content"].as_str()).unwrap_or_default().to_string()
        };
        Ok(text.map(|text| Self { text, bos_token: token("bos_token"), eos_token: token("eos_token") }))
    }

    /// Of `tokenizer.chat_template`.
    pub fn of_gguf(content: &Content) -> Option<Self> {
        let value = |name: &str| content.metadata.get(&format!("tokenizer.{name}"));
        let token = |name: &str| -> Option<String> {
            let id = value(name)?.to_u32().ok()?;
            Some(value("ggml.tokens")?.to_vec().ok()?.get(id as usize)?.to_string().ok()?.clone())
        };
        let Some(Value::String(text)) = value("chat_template") else { return None };
        let [bos_token, eos_token] = ["ggml.bos_token_id", "ggml.eos_token_id"].map(|id| token(id).unwrap_or_default());
        Some(Self { text: text.clone(), bos_token, eos_token })
    }

    /// A question as the first turn of a chat, up to where the model answers.
    pub fn first_turn(&self, question: &str) -> Result<String> {
        let text = self.render(&[("user", question)]);
        text.context("the model's chat template; take its form into --prompt, without --chat")
    }

    /// Messages of a role and a text each, up to where the model answers.
    pub fn render(&self, messages: &[(&str, &str)]) -> Result<String, Error> {
        let mut environment = Environment::new();
        // As Hugging Face's transformers render templates: whitespace around blocks, methods of Python's types, these functions, no tools.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        let messages: Vec<_> = messages.iter().map(|&(role, content)| context! { role, content }).collect();
        environment.template_from_named_str("chat_template", &self.text)?.render(context! {
            messages,
            add_generation_prompt => true,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
            tools => (),
            documents => (),
        })
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// In UTC.
fn strftime_now(format: String) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let text = jiff::fmt::strtime::format(&format, &now);
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}
