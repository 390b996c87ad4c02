#include "pull/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "core/error.h"

namespace mr {

void Digest::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Digest::Digest(const std::string& expected, int64_t size) : context_(EVP_MD_CTX_new()) {
  const bool is_git = expected.size() == 40;
  check(context_ && EVP_DigestInit_ex(context_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) == 1, "no hash can be made");
  if (is_git) add(fmt::format("blob {}", size) + '\0');
}

void Digest::add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }

std::string Digest::hex() {
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  EVP_DigestFinal_ex(context_.get(), out, &n);
  std::string text;
  for (unsigned i = 0; i < n; i++) text += fmt::format("{:02x}", out[i]);
  return text;
}

}  // namespace mr
