package protocol

import "encoding/json"

// ConfinesFiles reports whether the sandbox in the params of a method about files
// asks for something to be enforced about them. Clients send one that does not
// with every such method, too. What is not understood counts as if it did.
func ConfinesFiles(sandbox json.RawMessage) bool {
	f, err := fieldsOf(sandbox, "SandboxContext")
	if err != nil || f.optional("additionalPermissions") != nil {
		return true
	}
	if permissions := f.optional("permissions"); permissions != nil {
		p, err := fieldsOf(permissions, "Permissions")
		if err != nil {
			return true
		}
		switch p.string("type") {
		case "disabled", "external":
			return false
		case "managed":
			files, err := fieldsOf(p.required("file_system"), "FileSystem")
			return err != nil || files.string("type") != "unrestricted"
		}
		return true
	}
	// Older clients have a policy in its place, or send that alone.
	policy := f
	if inner := f.optional("sandboxPolicy"); inner != nil {
		if policy, err = fieldsOf(inner, "SandboxPolicy"); err != nil {
			return true
		}
	}
	return policy.string("type") != "danger-full-access"
}
