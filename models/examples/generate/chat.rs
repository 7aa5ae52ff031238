//! The chat template of SmolLM2.

use anyhow::{bail, Result};

/// As the model's files have it.
const TEMPLATE: &str =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}";

/// A question as the first turn of a chat, up to where the model answers.
pub fn first_turn(question: &str, template: Option<&str>) -> Result<String> {
    match template {
        None => bail!("the model has no chat template; take its prompt format into --prompt, without --chat"),
        Some(template) if template != TEMPLATE => {
            bail!("the model's chat template is not that of SmolLM2, the one that this example knows; take its form into --prompt, without --chat")
        }
        Some(_) => Ok(format!(
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
             <|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )),
    }
}
